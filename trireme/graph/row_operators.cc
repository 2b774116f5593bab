// The number of distinct rows depends on the ids, so a capture could not record these operators.
// They are added to graphs that were captured already. A graph from a peer may contain them too, so
// the kernels check their arguments. They are made of LibTorch's operators, which check indices.
#include "trireme/graph/row_operators.h"

#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace trireme::internal {
namespace {

using at::Tensor;

constexpr int64_t kBagMean = 1;  // the mode of embedding_bag that divides by the size of the bag

void check_ids(const Tensor& ids) {
  TORCH_CHECK(ids.defined() && ids.layout() == at::kStrided &&
                  (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt),
              "row ids must be a dense tensor of int32 or int64");
}

void check_rows(const Tensor& rows) {
  TORCH_CHECK(rows.defined() && rows.layout() == at::kStrided && rows.is_floating_point(),
              "rows must be a dense tensor of floating-point numbers");
}

// Rows of a table, one for each id.
struct IdsAndRows {
  Tensor ids, rows;
};

// Returns the entries of one list, with a single dimension of ids and without those of `no_row`.
IdsAndRows flat_rows(const Tensor& ids, const Tensor& rows, int64_t no_row) {
  check_ids(ids);
  check_rows(rows);
  TORCH_CHECK(rows.dim() >= ids.dim() && rows.sizes().slice(0, ids.dim()) == ids.sizes(),
              "there must be one row for each id");
  std::vector<int64_t> sizes{ids.numel()};
  for (int64_t i = ids.dim(); i < rows.dim(); ++i) sizes.push_back(rows.size(i));
  IdsAndRows flat{ids.reshape({-1}).to(at::kLong), rows.reshape(sizes)};
  if (no_row < 0) return flat;
  const Tensor kept = flat.ids.ne(no_row).nonzero().select(1, 0);
  return {flat.ids.index_select(0, kept), flat.rows.index_select(0, kept)};
}

std::tuple<Tensor, Tensor> sum_rows(at::TensorList ids, at::TensorList rows,
                                    at::IntArrayRef no_row) {
  TORCH_CHECK(!ids.empty() && rows.size() == ids.size() && no_row.size() == ids.size(),
              "there must be one list of rows and one 'no_row' for each list of ids");
  std::vector<Tensor> all_ids, all_rows;
  for (size_t i = 0; i < ids.size(); ++i) {
    IdsAndRows flat = flat_rows(ids[i], rows[i], no_row[i]);
    TORCH_CHECK(i == 0 || (flat.rows.scalar_type() == all_rows[0].scalar_type() &&
                           flat.rows.sizes().slice(1) == all_rows[0].sizes().slice(1)),
                "all rows must have one shape and dtype");
    all_ids.push_back(std::move(flat.ids));
    all_rows.push_back(std::move(flat.rows));
  }
  const Tensor entries = all_rows.size() == 1 ? all_rows[0] : at::cat(all_rows);
  const auto [distinct, places, counts] =
      at::_unique2(all_ids.size() == 1 ? all_ids[0] : at::cat(all_ids), /*sorted=*/true,
                   /*return_inverse=*/true);
  std::vector<int64_t> sizes = entries.sizes().vec();
  sizes[0] = distinct.numel();
  return {distinct, at::zeros(sizes, entries.options()).index_add_(0, places, entries)};
}

Tensor bag_rows(const Tensor& gradient, const Tensor& indices, const Tensor& offsets, int64_t mode,
                const std::optional<Tensor>& per_sample_weights, int64_t padding_idx) {
  check_rows(gradient);
  check_ids(indices);
  check_ids(offsets);
  TORCH_CHECK(gradient.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1,
              "the gradient must have two dimensions, indices and offsets one");
  // A bag begins at its offset. Bags without indices begin where the next bag begins.
  const Tensor positions = at::arange(indices.numel(), indices.options().dtype(at::kLong));
  const Tensor bags =
      at::searchsorted(offsets.to(at::kLong).contiguous(), positions, /*out_int32=*/false,
                       /*right=*/true)
          .sub_(1);
  Tensor rows = gradient.index_select(0, bags);
  if (mode == kBagMean) {
    const Tensor counted = indices.ne(padding_idx).to(at::kLong);
    // A bag of padding alone has the size 0. Its rows are never used, but must not become NaN.
    const Tensor sizes =
        at::zeros({gradient.size(0)}, counted.options()).index_add_(0, bags, counted).clamp_min_(1);
    rows.div_(sizes.index_select(0, bags).unsqueeze(1));
  }
  if (per_sample_weights && per_sample_weights->defined()) {
    check_rows(*per_sample_weights);
    TORCH_CHECK(per_sample_weights->dim() == 1 && per_sample_weights->size(0) == indices.size(0),
                "there must be one weight for each index");
    rows.mul_(per_sample_weights->to(gradient.scalar_type()).unsqueeze(1));
  }
  return rows;
}

}  // namespace

void define_row_operators(torch::Library& library) {
  library.def("sum_rows(Tensor[] ids, Tensor[] rows, int[] no_row) -> (Tensor, Tensor)",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(sum_rows)));
  library.def(
      "bag_rows(Tensor gradient, Tensor indices, Tensor offsets, int mode, "
      "Tensor? per_sample_weights, int padding_idx) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(bag_rows)));
}

}  // namespace trireme::internal
