#include "trireme/graph/row_operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

at::Tensor ids_of(const std::vector<int64_t>& ids) {
  return at::tensor(ids, at::kLong);
}

std::tuple<at::Tensor, at::Tensor> call_sum_rows(const std::vector<at::Tensor>& ids,
                                                 const std::vector<at::Tensor>& rows,
                                                 const std::vector<int64_t>& no_row) {
  register_own_operators();
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(at::TensorList, at::TensorList, at::IntArrayRef);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("trireme::sum_rows", "")
      .typed<Signature>()
      .call(ids, rows, no_row);
}

TEST(RowOperators, AddUpTheRowsOfEachId) {
  const at::Tensor first = ids_of({7, 2, 7, 5}), second = ids_of({2, 9}).to(at::kInt);
  const at::Tensor rows = at::arange(8, at::kFloat).reshape({2, 2, 2}), more = at::ones({2, 2});
  const auto [ids, sums] = call_sum_rows({first.reshape({2, 2}), second}, {rows, more}, {5, -1});
  EXPECT_TRUE(ids.equal(ids_of({2, 7, 9})));
  EXPECT_TRUE(sums.equal(at::tensor({3.0f, 4.0f, 4.0f, 6.0f, 1.0f, 1.0f}).reshape({3, 2})));
}

TEST(RowOperators, ATableMayHaveOneNumberForEachRow) {
  const auto [ids, sums] =
      call_sum_rows({ids_of({3, 1, 3})}, {at::tensor({1.0f, 2.0f, 4.0f})}, {-1});
  EXPECT_TRUE(ids.equal(ids_of({1, 3})));
  EXPECT_TRUE(sums.equal(at::tensor({2.0f, 5.0f})));
}

TEST(RowOperators, NoIdsGiveNoRows) {
  const auto [ids, sums] =
      call_sum_rows({at::empty({0}, at::kLong)}, {at::empty({0, 4}, at::kFloat)}, {-1});
  EXPECT_EQ(ids.numel(), 0);
  EXPECT_EQ(sums.sizes(), (at::IntArrayRef{0, 4}));
}

TEST(RowOperators, RejectRowsThatDoNotFit) {
  const at::Tensor ids = ids_of({1, 2});
  EXPECT_THROW(call_sum_rows({}, {}, {}), c10::Error);
  EXPECT_THROW(call_sum_rows({ids}, {at::ones({3, 2})}, {-1}), c10::Error);
  EXPECT_THROW(call_sum_rows({ids}, {at::ones({2, 2})}, {}), c10::Error);
  EXPECT_THROW(call_sum_rows({ids, ids}, {at::ones({2, 2}), at::ones({2, 3})}, {-1, -1}),
               c10::Error);
  EXPECT_THROW(call_sum_rows({ids.to(at::kFloat)}, {at::ones({2, 2})}, {-1}), c10::Error);
  EXPECT_THROW(call_sum_rows({at::Tensor()}, {at::ones({2, 2})}, {-1}), c10::Error);
}

// Compares the rows of bags with the gradient of the table that LibTorch computes.
TEST(RowOperators, RowsOfBagsAddUpToTheGradientOfTheTable) {
  constexpr int64_t kRows = 6, kPaddingRow = 2;
  const at::Tensor indices = ids_of({1, 2, 3, 1, 5, 2}), offsets = ids_of({0, 2, 2, 5});
  const at::Tensor gradient = at::arange(8, at::kFloat).reshape({4, 2}) + 1;
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                               const std::optional<at::Tensor>&, int64_t);
  register_own_operators();
  const auto bag_rows =
      c10::Dispatcher::singleton().findSchemaOrThrow("trireme::bag_rows", "").typed<Signature>();
  for (const int64_t mode : {0, 1}) {
    for (const int64_t padding : {int64_t{-1}, kPaddingRow}) {
      const at::Tensor table = at::ones({kRows, 2});
      const auto [bags, of_index, sizes, maxima] = at::_embedding_bag(
          table, indices, offsets, false, mode, false, std::nullopt, false, padding);
      const at::Tensor expected = at::_embedding_bag_backward(
          gradient, indices, offsets, of_index, sizes, maxima, kRows, false, mode,
          /*sparse=*/false, std::nullopt, padding);
      const at::Tensor rows =
          bag_rows.call(gradient, indices, offsets, mode, std::nullopt, padding);
      const auto [ids, sums] = call_sum_rows({indices}, {rows}, {padding});
      EXPECT_TRUE(at::zeros({kRows, 2}).index_copy(0, ids, sums).allclose(expected))
          << "mode " << mode << ", padding " << padding;
    }
  }
}

}  // namespace
}  // namespace trireme::internal
