// Small programs, one per way in which a capture can go wrong. Each either replays exactly as it
// runs eagerly, over steps with changing arguments, or is refused with a message that says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "trireme/base/error.h"
#include "trireme/capture/self_check.h"
#include "trireme/exec/random.h"
#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"

namespace trireme {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Step = std::function<Tensors(Tensor, Tensor)>;

struct Program {
  std::string name;
  std::function<Step()> make;  // with fresh state, so that two runs start alike
  std::string refusal;         // empty: replays equal
};

void PrintTo(const Program& program, std::ostream* out) {
  *out << program.name;
}

Tensor argument(int step) {
  torch::Generator generator = at::detail::createCPUGenerator(100 + step);
  return torch::randn({4, 3}, generator, torch::kFloat);
}

Tensor labels(int step) {
  torch::Generator generator = at::detail::createCPUGenerator(200 + step);
  return torch::randint(0, 3, {4}, generator, torch::kLong);
}

Variable weight(const std::string& name, at::IntArrayRef sizes, double scale = 0.1) {
  const int64_t count = c10::multiply_integers(sizes);
  return Variable(name, (torch::arange(count).to(torch::kFloat) * scale - 0.3).view(sizes));
}

// Gradient descent by hand, as a program may write it.
void descend(const Tensor& loss, const std::vector<Variable>& variables) {
  Tensors parameters;
  for (const Variable& variable : variables) parameters.push_back(variable.read());
  const Tensors gradients = torch::autograd::grad({loss}, parameters);
  for (size_t i = 0; i < variables.size(); ++i) variables[i].assign_sub(gradients[i] * 0.1);
}

std::vector<Program> programs();

class Trap : public testing::TestWithParam<Program> {};

TEST_P(Trap, ReplaysEqualOrIsRefused) {
  constexpr int kSteps = 4;
  const auto run = [](const Step& step) {
    auto captured = function(
        "trap", [step](const Tensor& x, const Tensor& y) -> Tensors { return step(x, y); });
    std::vector<Tensors> results;
    for (int i = 0; i < kSteps; ++i) {
      Tensors tensors = captured(argument(i), labels(i));
      for (Tensor& tensor : tensors) {
        if (tensor.defined()) tensor = tensor.clone();
      }
      results.push_back(std::move(tensors));
    }
    return results;
  };
  if (!GetParam().refusal.empty()) {
    try {
      run(GetParam().make());
      FAIL() << "was not refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().refusal));
    }
    return;
  }
  run_eagerly(true);
  const std::vector<Tensors> eager = run(GetParam().make());
  run_eagerly(false);
  const std::vector<Tensors> replayed = run(GetParam().make());
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_EQ(eager[i].size(), replayed[i].size());
    for (size_t j = 0; j < eager[i].size(); ++j) {
      EXPECT_TRUE(internal::nearly_equal(eager[i][j], replayed[i][j]))
          << "step " << i << " result " << j << "\neager\n"
          << eager[i][j] << "\nreplayed\n"
          << replayed[i][j];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Trap, testing::ValuesIn(programs()),
                         [](const auto& info) { return info.param.name; });

// --- arguments and results, constants, writes, views ---
std::vector<Program> memory_programs() {
  std::vector<Program> list;
  const auto add = [&](std::string name, std::function<Step()> make, std::string refusal = "") {
    list.push_back({std::move(name), std::move(make), std::move(refusal)});
  };
  const auto pure = [&](std::string name, Step step, std::string refusal = "") {
    add(
        std::move(name), [step] { return step; }, std::move(refusal));
  };

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
  // Their gradients are made of other operators, and have kernels of their own as well.
  pure("GradientsOfSiluAndMish", [](Tensor x, Tensor) {
    const Tensor a = x.detach().clone().requires_grad_();
    (torch::silu(a) + torch::mish(a)).sum().backward();
    return Tensors{a.grad() * 1};
  });
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
  pure("BlobBecomesAConstant", [](Tensor x, Tensor) {
    float numbers[3] = {3, 1, 2};
    return Tensors{x * torch::from_blob(numbers, {3}).clone()};
  });
  pure("ScalarsKeepTheDtype", [](Tensor x, Tensor y) {
    return Tensors{x * 2.5, 2.5 - x, y * 2, y / 2, 1.0 / (x + 10), torch::where(x > 0, x, 0.5)};
  });
  pure("NumbersOfOtherDtypes", [](Tensor x, Tensor y) {
    return Tensors{x.to(torch::kDouble) * 2, y.to(torch::kFloat) + 0.5, (x > 0).to(torch::kInt),
                   x.to(torch::kBFloat16) * 3};
  });
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
  return list;
}

// --- lists, optional tensors, operators without a tensor result, data dependence ---
std::vector<Program> operator_programs() {
  std::vector<Program> list;
  const auto pure = [&](std::string name, Step step, std::string refusal = "") {
    list.push_back({std::move(name), [step] { return step; }, std::move(refusal)});
  };
  pure("Lists", [](Tensor x, Tensor) {
    Tensors parts = x.split(2), rows = x.unbind(0), chunks = x.chunk(3, 1);
    return Tensors{torch::cat(parts, 1), torch::stack(rows).sum(0),
                   torch::cat({chunks[2], chunks[0]}, 1), torch::cat(x.split_with_sizes({1, 3}))};
  });
  pure("OneTensorManyTimesInAList", [](Tensor x, Tensor) {
    Tensor a = x + 1;
    return Tensors{torch::cat({a, a, x}), torch::stack({a, a})};
  });
  pure("InPlaceOnAPartOfASplit", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    torch::NoGradGuard no_gradients;
    a.unsafe_split(2)[1].add_(1);
    return Tensors{a};
  });
  pure("OptionalTensors", [](Tensor x, Tensor) {
    return Tensors{torch::layer_norm(x, {3}), torch::layer_norm(x, {3}, torch::ones({3})),
                   torch::clamp(x, Tensor(), torch::zeros({3}))};
  });
  pure("ListOfOptionalTensors", [](Tensor x, Tensor y) {
    using namespace torch::indexing;
    Tensor a = x.clone();
    a.index_put_({Slice(), y}, torch::ones({1}));
    return Tensors{x.index({y % 3}), x.index({Slice(), y}), a};
  });
  pure("ForeachWithoutAResult", [](Tensor x, Tensor) {
    Tensors many{x + 1, x * 2};
    torch::_foreach_add_(many, 1);
    torch::_foreach_mul_(many, many);
    return many;
  });
  pure("ForeachWithResults", [](Tensor x, Tensor) {
    Tensors many = torch::_foreach_mul({x, x + 1}, 2);
    return Tensors{many[0] + many[1]};
  });
  pure("SeveralResultsSomeUnused", [](Tensor x, Tensor) {
    auto [values, places] = x.max(1);
    return Tensors{values, std::get<1>(x.sort(1)), std::get<0>(x.topk(2))};
  });
  pure("ShapesAreFactsOfTheSignature", [](Tensor x, Tensor) {
    return Tensors{x.view({x.size(1), x.numel() / x.size(1)}) * static_cast<double>(x.size(0))};
  });
  pure("EqualOfATensorWithItself",
       [](Tensor x, Tensor) { return Tensors{torch::equal(x, x) ? x + 1 : x - 1}; });
  pure(
      "EqualOfTwoTensorsIsRefused",
      [](Tensor x, Tensor) { return Tensors{torch::equal(x, x + 1) ? x : x * 2}; }, "aten::equal");
  pure(
      "ItemIsRefused", [](Tensor x, Tensor) { return Tensors{x * x.sum().item<float>()}; },
      "aten::_local_scalar_dense");
  pure(
      "BranchOnATensorIsRefused",
      [](Tensor x, Tensor) { return Tensors{(x.sum() > 0).item<bool>() ? x : -x}; },
      "aten::_local_scalar_dense");
  pure(
      "NonzeroIsRefused", [](Tensor x, Tensor) { return Tensors{x.nonzero()}; }, "aten::nonzero");
  pure(
      "BooleanIndexIsRefused", [](Tensor x, Tensor) { return Tensors{x.index({x > 0})}; },
      "aten::index.Tensor");
  pure(
      "MaskedSelectIsRefused", [](Tensor x, Tensor) { return Tensors{x.masked_select(x > 0)}; },
      "aten::masked_select");
  pure(
      "UniqueIsRefused", [](Tensor, Tensor y) { return Tensors{std::get<0>(torch::_unique(y))}; },
      "aten::_unique");
  pure("MaskedFillAndWhere", [](Tensor x, Tensor) {
    return Tensors{x.masked_fill(x > 0, 1.0), torch::where(x > 0, x, -x)};
  });
  pure("BooleanIndexPut", [](Tensor x, Tensor) {
    Tensor a = x.clone();
    a.index_put_({x > 0}, torch::zeros({}));
    return Tensors{a};
  });
  pure(
      "NumberReadThroughAPointerIsRefused",
      [](Tensor x, Tensor) { return Tensors{x * x.data_ptr<float>()[0]}; }, "captured twice");
  pure(
      "ShapeReadThroughAPointerIsRefused",
      [](Tensor x, Tensor y) {
        return Tensors{x.narrow(0, 0, 1 + y.data_ptr<int64_t>()[0] % 3).sum()};
      },
      "captured twice");
  pure(
      "BranchThroughAPointerIsRefused",
      [](Tensor x, Tensor) {
        return Tensors{x.data_ptr<float>()[0] > x.data_ptr<float>()[1] ? x.exp() : x.sin()};
      },
      "captured twice");
  pure("Complex", [](Tensor x, Tensor) {
    Tensor z = torch::complex(x, x + 1);
    return Tensors{torch::view_as_real(z.conj() * z), z.mul(c10::complex<double>(0, 1)).abs()};
  });
  pure("ConjugatedView", [](Tensor x, Tensor) {
    Tensor z = torch::complex(x, x + 1).conj();
    return Tensors{torch::view_as_real(z.t().contiguous()), torch::imag(z) * 2};
  });
  pure(
      "UnknownOperatorOnTheListIsRefused",
      [](Tensor x, Tensor) {
        return Tensors{torch::quantize_per_tensor(x, 0.1, 0, torch::kQInt8)};
      },
      "aten::quantize_per_tensor");
  pure("InferenceMode", [](Tensor x, Tensor) {
    const c10::InferenceMode inference;
    Tensor a = torch::linear(x, torch::ones({2, 3}));
    a.add_(1);
    return Tensors{a.reshape({-1})};
  });
  pure("Fft",
       [](Tensor x, Tensor) { return Tensors{torch::fft::irfft(torch::fft::rfft(x, 4), 4)}; });
  pure("Linalg", [](Tensor x, Tensor) {
    Tensor a = x.t().matmul(x) + torch::eye(3);
    return Tensors{torch::linalg_inv(a), torch::linalg_solve(a, x.t()), a.det()};
  });
  return list;
}

// --- autograd, variables, modules, randomness, the program's own state ---
std::vector<Program> state_programs() {
  std::vector<Program> list;
  const auto add = [&](std::string name, std::function<Step()> make, std::string refusal = "") {
    list.push_back({std::move(name), std::move(make), std::move(refusal)});
  };
  add("GradientDescent", [] {
    Variable w = weight("w", {3, 2}), b = weight("b", {2});
    return Step([w, b](Tensor x, Tensor) {
      Tensor loss = (torch::tanh(x.matmul(w.read()) + b.read())).pow(2).mean();
      descend(loss, {w, b});
      return Tensors{loss, w.read(), b.read()};
    });
  });
  add("SavedOutputs", [] {  // of sigmoid, softmax, exp, max pooling: unpacked as new tensors
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor h = torch::sigmoid(x.matmul(w.read()));
      Tensor loss = (torch::softmax(h.exp(), 1) * torch::tanh(h)).sqrt().sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("InPlaceActivationInAutograd", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor h = x.matmul(w.read()).relu_();
      Tensor loss = h.mul(2).sigmoid_().sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("ReadAfterWrite", [] {
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      Tensor before = x * w.read();
      w.assign_add(x.sum(0));
      Tensor after = x * w.read();
      w.assign(after.mean(0));
      return Tensors{before, after, w.read() * 2};
    });
  });
  add("VariableReturnedItself", [] {
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      w.assign_add(x.sum(0));
      return Tensors{w.read(), w.read().view({3, 1})};
    });
  });
  add("TwoViewsOfOneVariable", [] {
    Variable w = weight("w", {4, 3});
    return Step([w](Tensor x, Tensor) {
      torch::NoGradGuard no_gradients;
      w.read().narrow(0, 0, 2).add_(1);
      w.read().t()[1].mul_(2);
      return Tensors{w.read() + x};
    });
  });
  add("IntegerVariable", [] {
    Variable count("count", torch::zeros({}, torch::kLong));
    return Step([count](Tensor x, Tensor y) {
      count.assign_add(y.sum());
      return Tensors{count.read(), x * count.read()};
    });
  });
  add(
      "VariablesThatShareMemoryAreRefused",
      [] {
        auto net = std::make_shared<torch::nn::Module>();
        Tensor flat = torch::ones({6});
        net->register_buffer("a", flat.narrow(0, 0, 3));
        net->register_buffer("b", flat.narrow(0, 3, 3));
        track(net);
        return Step([net](Tensor x, Tensor) {
          net->buffers()[1].add_(x.sum(0));
          return Tensors{x * net->buffers()[0], x * net->buffers()[1]};
        });
      },
      "share memory");
  add("TiedWeights", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor loss = x.matmul(w.read()).matmul(w.read().t()).pow(2).mean();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("BackwardIntoGrad", [] {
    Variable w = weight("w", {3, 2});
    return Step([w](Tensor x, Tensor) {
      w.read().mutable_grad() = Tensor();
      Tensor loss = x.matmul(w.read()).pow(2).sum();
      loss.backward();
      torch::NoGradGuard no_gradients;
      Tensor(w.read()).sub_(w.read().grad() * 0.01);
      return Tensors{loss, w.read()};
    });
  });
  add("TwoBackwardsAddUp", [] {
    Variable w = weight("w", {3, 2});
    return Step([w](Tensor x, Tensor) {
      w.read().mutable_grad() = Tensor();
      x.matmul(w.read()).pow(2).sum().backward();
      (x * 2).matmul(w.read()).sum().backward();
      torch::NoGradGuard no_gradients;
      Tensor(w.read()).sub_(w.read().grad() * 0.01);
      return Tensors{w.read()};
    });
  });
  add(
      "GradientLeftByAnEarlierStepIsRefused",
      [] {
        Variable w = weight("w", {3, 2});
        return Step([w](Tensor x, Tensor) {
          Tensor loss = x.matmul(w.read()).pow(2).sum();
          loss.backward();
          torch::NoGradGuard no_gradients;
          Tensor(w.read()).sub_(w.read().grad() * 0.01);
          return Tensors{loss};
        });
      },
      "zero_grad");
  add("SecondDerivative", [] {
    Variable w = weight("w", {3, 1});
    return Step([w](Tensor x, Tensor) {
      Tensor y = torch::sin(x.matmul(w.read())).sum();
      Tensor first = torch::autograd::grad({y}, {w.read()}, {}, true, true)[0];
      Tensor loss = first.pow(2).sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add("GradientOfAnArgument", [] {
    return Step([](Tensor x, Tensor) {
      Tensor a = x.detach().clone().requires_grad_(true);
      return torch::autograd::grad({a.pow(3).sum()}, {a});
    });
  });
  add("HookOnAGradient", [] {
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      Tensor h = x * w.read();
      h.register_hook([](Tensor gradient) { return gradient.clamp(-0.1, 0.1); });
      descend(h.sum(), {w});
      return Tensors{w.read()};
    });
  });
  add("SparseGradient", [] {
    Variable table = weight("table", {3, 2});
    return Step([table](Tensor, Tensor y) {
      Tensor loss = torch::embedding(table.read(), y, -1, false, /*sparse=*/true).pow(2).sum();
      Tensor gradient = torch::autograd::grad({loss}, {table.read()})[0];
      torch::NoGradGuard no_gradients;
      Tensor(table.read()).add_(gradient, -0.1);
      return Tensors{loss, table.read()};
    });
  });
  add("SparseGradientUsedTwice", [] {
    Variable table = weight("table", {3, 2});
    return Step([table](Tensor, Tensor y) {
      Tensor a = torch::embedding(table.read(), y, -1, false, true),
             b = torch::embedding(table.read(), (y + 1) % 3, -1, false, true);
      Tensor gradient = torch::autograd::grad({(a * b).sum()}, {table.read()})[0];
      return Tensors{gradient.to_dense()};
    });
  });
  add(
      "CoalesceIsRefused",
      [] {
        Variable table = weight("table", {3, 2});
        return Step([table](Tensor, Tensor y) {
          Tensor loss = torch::embedding(table.read(), y, -1, false, true).sum();
          return Tensors{torch::autograd::grad({loss}, {table.read()})[0].coalesce().values()};
        });
      },
      "aten::_coalesce");
  add("BatchNormWritesItsStatistics", [] {
    Variable mean("mean", torch::zeros({3}), {.trainable = false}),
        variance("variance", torch::ones({3}), {.trainable = false});
    return Step([mean, variance](Tensor x, Tensor) {
      Tensor y = torch::batch_norm(x, {}, {}, mean.read(), variance.read(), true, 0.1, 1e-5, false);
      return Tensors{y, mean.read(), variance.read()};
    });
  });
  add(
      "BatchNormOnTensorsThatAreNoVariablesIsRefused",
      [] {
        Tensor mean = torch::zeros({3}), variance = torch::ones({3});
        return Step([mean, variance](Tensor x, Tensor) {
          return Tensors{torch::batch_norm(x, {}, {}, mean, variance, true, 0.1, 1e-5, false)};
        });
      },
      "aten::native_batch_norm");
  add("BatchNormInEvaluationReadsOnly", [] {
    Tensor mean = torch::zeros({3}), variance = torch::ones({3});
    return Step([mean, variance](Tensor x, Tensor) {
      return Tensors{torch::batch_norm(x, {}, {}, mean, variance, false, 0.1, 1e-5, false)};
    });
  });
  add(
      "ParameterThatIsNoVariableIsRefused",
      [] {
        torch::nn::Linear net(3, 2);
        return Step([net](Tensor x, Tensor) mutable { return Tensors{net(x)}; });
      },
      "tr::track");
  add("TrackedModule", [] {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::BatchNorm1d(4),
                              torch::nn::Linear(4, 3));
    auto variables = track(net);
    return Step([net, variables](Tensor x, Tensor y) mutable {
      Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
      std::vector<Variable> trained;
      for (const Variable& v : variables) {
        if (v.trainable()) trained.push_back(v);
      }
      descend(loss, trained);
      Tensors results{loss};
      for (const Variable& v : variables) results.push_back(v.read());
      return results;
    });
  });
  add(
      "FrozenCounterIsRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step(
            [counter](Tensor x, Tensor) { return Tensors{x / static_cast<double>(++*counter)}; });
      },
      "captured twice");
  add(
      "FrozenCounterAsATensorIsRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step([counter](Tensor x, Tensor) {
          return Tensors{x / torch::full({1}, static_cast<double>(++*counter))};
        });
      },
      "captured twice");
  add(
      "FrozenCounterInAVectorIsRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step([counter](Tensor x, Tensor) {
          ++*counter;
          return Tensors{x * torch::tensor(std::vector<float>{1, 2, static_cast<float>(*counter)})};
        });
      },
      "captured twice");
  add(
      "OperatorsThatComeAndGoAreRefused",
      [] {
        auto counter = std::make_shared<int>(0);
        return Step([counter](Tensor x, Tensor) {
          return Tensors{++*counter % 2 == 0 ? x.exp() : x.exp().sin()};
        });
      },
      "captured twice");
  add(
      "RandomNumbersOfTheLibraryAreRefused",
      [] { return Step([](Tensor x, Tensor) { return Tensors{x * (rand() % 100000)}; }); },
      "captured twice");
  add(
      "ResultKeptByTheProgramIsRefused",
      [] {
        auto last = std::make_shared<Tensor>();
        return Step([last](Tensor x, Tensor) {
          *last = x + 1;
          return Tensors{x * 2};
        });
      },
      "outlives the function");
  add(
      "MemberAssignedInTheStepIsRefused",
      [] {
        auto hidden = std::make_shared<Tensor>(torch::zeros({4, 3}));
        return Step([hidden](Tensor x, Tensor) {
          *hidden = *hidden * 0.5 + x;
          return Tensors{*hidden * 1};
        });
      },
      "outlives the function");
  add(
      "VariableGivenOtherMemoryIsRefused",
      [] {
        Variable w = weight("w", {3});
        return Step([w](Tensor x, Tensor) {
          Tensor a = x * w.read();
          w.read().set_data(w.read().data() * 2);
          return Tensors{a};
        });
      },
      "other memory");
  add(
      "VariableReshapedIsRefused",
      [] {
        Variable w("w", torch::ones({4, 3}), {.trainable = false});
        return Step([w](Tensor x, Tensor) {
          Tensor(w.read()).t_();
          return Tensors{x * 1};
        });
      },
      "shape of variable");
  add("RandomNumbersAreThoseOfTheStep", [] {
    return Step([](Tensor x, Tensor) {
      return Tensors{x + torch::rand({4, 3}),
                     torch::randn_like(x),
                     torch::randint(0, 9, {5}),
                     torch::randperm(7),
                     torch::bernoulli(torch::sigmoid(x)),
                     torch::dropout(x, 0.5, true),
                     x.clone().normal_(),
                     x.clone().uniform_(),
                     torch::multinomial(torch::softmax(x, 1), 1),
                     torch::normal(0., 1., {3})};
    });
  });
  add("UnusedRandomNumbersStillCount", [] {
    return Step([](Tensor x, Tensor) {
      torch::rand({3});
      Tensor(torch::rand({2})).mul_(2);
      return Tensors{x * torch::rand({3})};
    });
  });
  add("DropoutInAutograd", [] {
    Variable w = weight("w", {3, 3});
    return Step([w](Tensor x, Tensor) {
      Tensor loss = torch::dropout(x.matmul(w.read()), 0.3, true).pow(2).sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  add(
      "SeedingInsideIsRefused",
      [] {
        return Step([](Tensor x, Tensor) {
          torch::manual_seed(1);
          return Tensors{x + torch::rand({3})};
        });
      },
      "seeds LibTorch's default generator");
  add(
      "GeneratorOfOnesOwnIsRefused",
      [] {
        torch::Generator own = at::detail::createCPUGenerator(5);
        return Step([own](Tensor x, Tensor) { return Tensors{x + torch::rand({3}, own)}; });
      },
      "aten::rand.generator");
  add("NestedFunctions", [] {
    Variable w = weight("w", {3});
    auto inner = function("inner", [w](const Tensor& x) {
      w.assign_add(x.sum(0));
      return x * w.read();
    });
    auto outer = function("outer", [inner](const Tensor& x) { return inner(x) + inner(x * 2); });
    return Step([outer, w](Tensor x, Tensor) { return Tensors{outer(x), w.read()}; });
  });
  add("AttentionComparesATensorWithItself", [] {
    torch::manual_seed(5);
    torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(4, 2));
    auto variables = track(attention);
    return Step([attention, variables](Tensor x, Tensor) mutable {
      Tensor q = torch::cat({x, x.narrow(1, 0, 1)}, 1).unsqueeze(1);
      auto [out, weights] = attention(q, q, q);
      Tensor loss = out.pow(2).sum();
      descend(loss, {variables[0], variables[1]});
      return Tensors{loss, out, weights, variables[0].read()};
    });
  });
  add("LstmNeedsItsWorkspace", [] {
    torch::manual_seed(5);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2));
    auto variables = track(lstm);
    return Step([lstm, variables](Tensor x, Tensor) mutable {
      Tensor loss = std::get<0>(lstm(x.unsqueeze(1))).pow(2).sum();
      descend(loss, variables);
      return Tensors{loss, variables[0].read(), variables.back().read()};
    });
  });
  add("EmbeddingBag", [] {
    Variable table = weight("table", {3, 4});
    return Step([table](Tensor, Tensor y) {
      Tensor offsets = torch::tensor(std::vector<int64_t>{0, 2});
      Tensor loss = std::get<0>(torch::embedding_bag(table.read(), y, offsets)).pow(2).sum();
      descend(loss, {table});
      return Tensors{loss, table.read()};
    });
  });
  add("Checkpointless", [] {  // autograd::Function of one's own
    struct Twice : torch::autograd::Function<Twice> {
      static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
        context->save_for_backward({x});
        return x * x;
      }
      static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::tensor_list gradients) {
        return {gradients[0] * context->get_saved_variables()[0] * 2};
      }
    };
    Variable w = weight("w", {3});
    return Step([w](Tensor x, Tensor) {
      Tensor loss = Twice::apply(x * w.read()).sum();
      descend(loss, {w});
      return Tensors{loss, w.read()};
    });
  });
  return list;
}

std::vector<Program> programs() {
  std::vector<Program> all = memory_programs();
  for (Program& program : operator_programs()) all.push_back(std::move(program));
  for (Program& program : state_programs()) all.push_back(std::move(program));
  return all;
}

}  // namespace
}  // namespace trireme
