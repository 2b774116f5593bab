// Programs with unusual operators: lists, optional tensors, results that are not tensors, shapes
// that depend on data.
#include <torch/torch.h>

#include "trireme/function/trap_program.h"

namespace trireme {
namespace {

void add_list_programs(std::vector<Program>& list) {
  const AddPureProgram pure(list);
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
  pure("ShapesAreConstantsOfTheSignature", [](Tensor x, Tensor) {
    return Tensors{x.view({x.size(1), x.numel() / x.size(1)}) * static_cast<double>(x.size(0))};
  });
}

void add_data_dependent_programs(std::vector<Program>& list) {
  const AddPureProgram pure(list);
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
      [](Tensor x, Tensor) { return Tensors{x * x.data_ptr<float>()[0]}; }, "two captures differ");
  pure(
      "ShapeReadThroughAPointerIsRefused",
      [](Tensor x, Tensor y) {
        return Tensors{x.narrow(0, 0, 1 + y.data_ptr<int64_t>()[0] % 3).sum()};
      },
      "two captures differ");
  pure(
      "BranchThroughAPointerIsRefused",
      [](Tensor x, Tensor) {
        return Tensors{x.data_ptr<float>()[0] > x.data_ptr<float>()[1] ? x.exp() : x.sin()};
      },
      "without an operator");
}

void add_uncommon_programs(std::vector<Program>& list) {
  const AddPureProgram pure(list);
  pure("Complex", [](Tensor x, Tensor) {
    Tensor z = torch::complex(x, x + 1);
    return Tensors{torch::view_as_real(z.conj() * z), z.mul(c10::complex<double>(0, 1)).abs()};
  });
  pure("ConjugatedView", [](Tensor x, Tensor) {
    Tensor z = torch::complex(x, x + 1).conj();
    return Tensors{torch::view_as_real(z.t().contiguous()), torch::imag(z) * 2};
  });
  pure(
      "OperatorThatIsNotOnTheListIsRefused",
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
}

}  // namespace

std::vector<Program> operator_programs() {
  std::vector<Program> list;
  add_list_programs(list);
  add_data_dependent_programs(list);
  add_uncommon_programs(list);
  return list;
}

}  // namespace trireme
