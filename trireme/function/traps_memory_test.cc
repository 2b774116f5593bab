// Programs that use memory in unusual ways: shared results, views, writes, constants.
#include <torch/torch.h>

#include "trireme/function/trap_program.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace {

void add_view_programs(std::vector<Program>& list) {
  const AddPureProgram pure(list);
  pure("ResultIsTheArgument", [](Tensor x, Tensor y) { return Tensors{x, y}; });
  pure("ResultIsAViewOfTheArgument", [](Tensor x, Tensor) { return Tensors{x.t(), x[1]}; });
  pure("SameResultTwice", [](Tensor x, Tensor) {
    Tensor a = x * 2;
    return Tensors{a, a, a.view({12})};
  });
  pure("ResultsThatAliasEachOther", [](Tensor x, Tensor) {
    Tensor a = x * 2, b = a.view({3, 4});
    b.add_(1);
    return Tensors{a, b};
  });
  pure("UndefinedResult", [](Tensor x, Tensor) { return Tensors{Tensor(), x + 1}; });
  pure("InPlaceOnAnIntermediate", [](Tensor x, Tensor) {
    Tensor a = x + 1;
    a.mul_(2).relu_();
    return Tensors{a};
  });
  pure("InPlaceThroughAView", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a[0].zero_();
    a.t()[1].fill_(7);
    return Tensors{a};
  });
  pure("InPlaceThroughAViewOfAView", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a.narrow(0, 1, 2).t().narrow(0, 0, 1).mul_(5);
    return Tensors{a};
  });
  pure("ReadBeforeAndAfterAWrite", [](Tensor x, Tensor) {
    Tensor a = x.clone(), before = a * 1, view = a.view({-1});
    a.add_(3);
    return Tensors{before, view * 1};
  });
  pure("DataIsTheSameMemory", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a.data().add_(1);
    return Tensors{a, a.data() * 2};
  });
  pure("ViewOfData", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a.data().t().mul_(2);
    return Tensors{a};
  });
  pure("DetachIsAnAlias", [](Tensor x, Tensor) {
    Tensor a = x.clone(), b = a.detach();
    b.add_(1);
    return Tensors{a};
  });
  pure("TransposeInPlace", [](Tensor x, Tensor) {
    Tensor a = x.clone(), b = a.detach();
    a.t_();
    return Tensors{a.contiguous(), b * 2, a.matmul(b)};
  });
  pure("SqueezeAndUnsqueezeInPlace", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a.unsqueeze_(0);
    a.add_(1);
    a.squeeze_(0);
    return Tensors{a};
  });
  // The backward operators of both are composite, but also have kernels of their own.
  pure("GradientsOfSiluAndMish", [](Tensor x, Tensor) {
    const Tensor a = x.detach().clone().requires_grad_();
    (torch::silu(a) + torch::mish(a)).sum().backward();
    return Tensors{a.grad() * 1};
  });
}

void add_write_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  const AddPureProgram pure(list);
  pure("ResizeInPlace", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a.resize_({2, 3});
    return Tensors{a * 2};
  });
  pure("OutVariantThatResizes", [](Tensor x, Tensor) {
    Tensor out = torch::empty({0});
    torch::add_out(out, x, x);
    return Tensors{out * 1};
  });
  pure("OutVariantIntoAView", [](Tensor x, Tensor) {
    Tensor whole = torch::zeros({8, 3}), half = whole.narrow(0, 2, 4);
    torch::mul_out(half, x, x);
    return Tensors{whole};
  });
  pure("ExpandedWithoutMemory", [](Tensor x, Tensor) {
    return Tensors{x.select(0, 0).expand({5, 3}) + 1, torch::ones({1}).expand({4, 3}) * x};
  });
  pure("AsStridedWithOverlap", [](Tensor x, Tensor) {
    return Tensors{x.as_strided({3, 4}, {2, 1}, 1) * 2};
  });
  pure(
      "SetOfAnotherStorageIsRefused",
      [](Tensor x, Tensor) {
        Tensor a = torch::zeros({2});
        a.set_(x.clone());
        return Tensors{a};
      },
      "aten::set_");
  pure(
      "WriteToAnArgumentIsRefused",
      [](Tensor x, Tensor) {
        x.add_(1);
        return Tensors{x};
      },
      "writes to argument 0");
  pure(
      "WriteToAViewOfAnArgumentIsRefused",
      [](Tensor x, Tensor) {
        x.t().narrow(0, 0, 1).zero_();
        return Tensors{x * 1};
      },
      "writes to argument 0");
  add(
      "WriteToATensorOfTheProgramIsRefused",
      [] {
        Tensor total = torch::zeros({4, 3});
        return Step([total](Tensor x, Tensor) mutable {
          total.add_(x);
          return Tensors{total};
        });
      },
      "not a variable");
  add(
      "WriteByOutVariantIsRefused",
      [] {
        Tensor out = torch::zeros({4, 3});
        return Step([out](Tensor x, Tensor) mutable {
          torch::add_out(out, x, x);
          return Tensors{out};
        });
      },
      "not a variable");
}

void add_constant_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  const AddPureProgram pure(list);
  add("TensorOfTheProgramIsAConstant", [] {
    Tensor scale = torch::arange(3).to(torch::kFloat);
    return Step([scale](Tensor x, Tensor) { return Tensors{x * scale, x * scale.flip(0)}; });
  });
  add("ViewsOfATensorOfTheProgram", [] {
    Tensor table = torch::arange(24).to(torch::kFloat).view({8, 3});
    return Step([table](Tensor x, Tensor) {
      return Tensors{x + table.narrow(0, 0, 4), x + table.narrow(0, 4, 4), table.t().matmul(table)};
    });
  });
  pure("VectorBecomesAConstant", [](Tensor x, Tensor) {
    return Tensors{x * torch::tensor(std::vector<float>{1, 2, 3}),
                   x + torch::tensor({{1.f}, {2.f}, {3.f}, {4.f}})};
  });
  pure("ConstantOfTheStepMayBeWritten", [](Tensor x, Tensor) {
    Tensor a = torch::tensor(std::vector<float>{1, 2, 3});
    Tensor b = a * 1;
    a.mul_(2);
    return Tensors{x * a, b};
  });
  pure("AccessorOnAFreshTensor", [](Tensor x, Tensor) {
    Tensor a = torch::zeros({3});
    auto items = a.accessor<float, 1>();
    for (int i = 0; i < 3; ++i) items[i] = static_cast<float>(i * i);
    return Tensors{x * a};
  });
  pure(
      "BlobInTheFunctionIsRefused",
      [](Tensor x, Tensor) {
        float numbers[3] = {3, 1, 2};
        return Tensors{x * torch::from_blob(numbers, {3}).clone()};
      },
      "from_blob()");
  pure("ScalarsKeepTheDtype", [](Tensor x, Tensor y) {
    return Tensors{x * 2.5, 2.5 - x, y * 2, y / 2, 1.0 / (x + 10), torch::where(x > 0, x, 0.5)};
  });
  pure("NumbersOfOtherDtypes", [](Tensor x, Tensor y) {
    return Tensors{x.to(torch::kDouble) * 2, y.to(torch::kFloat) + 0.5, (x > 0).to(torch::kInt),
                   x.to(torch::kBFloat16) * 3};
  });
}

void add_hidden_write_programs(std::vector<Program>& list) {
  const AddProgram add(list);
  const AddPureProgram pure(list);
  pure(
      "HiddenWriteToAnIntermediateIsRefused",
      [](Tensor x, Tensor) {
        Tensor a = x + 1;
        a.data_ptr<float>()[0] = 5;
        return Tensors{a * 2};
      },
      "written without an operator");
  pure(
      "HiddenWriteToAnArgumentIsRefused",
      [](Tensor x, Tensor) {
        Tensor a = x * 2;
        x.data_ptr<float>()[0] = 5;
        return Tensors{a};
      },
      "without an operator");
  pure(
      "HiddenWriteToAResultIsRefused",
      [](Tensor x, Tensor) {
        Tensor a = x + 1;
        a.data_ptr<float>()[0] = 5;
        return Tensors{a};
      },
      "written without an operator");
  add(
      "HiddenWriteToAVariableIsRefused",
      [] {
        Variable w = weight("w", {3});
        return Step([w](Tensor x, Tensor) {
          Tensor a = x * w.read();
          w.read().data_ptr<float>()[0] += 1;
          return Tensors{a};
        });
      },
      "without an operator");
  pure("UninitializedIsNotRead", [](Tensor x, Tensor) {
    Tensor a = torch::empty({4, 3});
    a.copy_(x);
    return Tensors{a};
  });
  pure(
      "SparseResultIsRefused", [](Tensor x, Tensor) { return Tensors{x.to_sparse()}; },
      "aten::_to_sparse");
}

}  // namespace

std::vector<Program> memory_programs() {
  std::vector<Program> list;
  add_view_programs(list);
  add_write_programs(list);
  add_constant_programs(list);
  add_hidden_write_programs(list);
  return list;
}

}  // namespace trireme
