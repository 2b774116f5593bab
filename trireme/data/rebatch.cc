#include "trireme/data/rebatch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/base/warn_once.h"
#include "trireme/data/dataset_steps.h"

namespace trireme::internal {
namespace {

// Returns the size of the last batch() or padded_batch() of a dataset, or 0.
int64_t global_batch_size_of(const DatasetStep* step) {
  for (; step != nullptr; step = step->input.get()) {
    if (step->def.has_batch()) return step->def.batch().size();
    if (step->def.has_padded_batch()) return step->def.padded_batch().size();
  }
  return 0;
}

}  // namespace

std::vector<int64_t> rebatch_sizes(int64_t global_batch_size, int workers, int replicas,
                                   int worker) {
  if (global_batch_size < 1 || workers < 1 || replicas < 1 || worker < 0 || worker >= workers) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("a global batch of ", global_batch_size,
                             " cannot be divided for worker ", worker, " of ", workers, " with ",
                             replicas, " replicas each; there must be at least one of each"));
  }
  const int64_t parts = int64_t{workers} * replicas;
  std::vector<int64_t> sizes(parts, global_batch_size / parts);
  for (int64_t i = 0; i < global_batch_size % parts; ++i) ++sizes[i];
  // Every worker begins at another place, so that the parts of one step add up to a global batch.
  std::rotate(sizes.begin(), sizes.begin() + int64_t{worker} * replicas, sizes.end());
  return sizes;
}

Dataset rebatch(const Dataset& dataset, int workers, int replicas, int worker) {
  if (workers == 1 && replicas == 1) return dataset;
  const DatasetStepPtr& last = Access<Dataset>::last(dataset);
  const Origin origin{"", absl::StrCat("dataset ", dataset.describe())};
  const int64_t size = global_batch_size_of(last.get());
  if (size == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "it has no batches that could be divided among replicas; add batch() with the "
                "number of examples that all replicas together train on in a step",
                origin);
  }
  const std::vector<int64_t> sizes = rebatch_sizes(size, workers, replicas, worker);
  if (size % static_cast<int64_t>(sizes.size()) != 0) {
    warn_once(absl::StrCat(origin.object, ": batches of ", size, " cannot be divided evenly among ",
                           sizes.size(), " replicas, which get batches of ",
                           absl::StrJoin(rebatch_sizes(size, workers, replicas, 0), ", "),
                           "; make the size a multiple of the number of replicas"));
  }
  proto::DatasetStep def;
  def.mutable_rebatch()->mutable_sizes()->Assign(sizes.begin(), sizes.end());
  return Access<Dataset>::make(value_or_throw(add_step(last, std::move(def), {})));
}

Dataset divide_batches(const Dataset& dataset, int parts) {
  if (parts == 1) return dataset;
  proto::DatasetStep def;
  def.mutable_rebatch()->set_parts(parts);
  return Access<Dataset>::make(
      value_or_throw(add_step(Access<Dataset>::last(dataset), std::move(def), {})));
}

}  // namespace trireme::internal
