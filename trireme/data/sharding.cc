#include "trireme/data/sharding.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/base/warn_once.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/dataset_steps.h"

// A dataset is divided by an edit of its definition, from which it is then made again: files are
// taken out of the sources, or a shard step is put in. Neither changes which tensors belong to the
// definition.
//
// A shard step stands as far ahead as possible, directly after the source, so that shuffles,
// batches and repetitions after it work on the elements of one worker. take(), skip(), shard() and
// zip() depend on the numbers of elements, so the shard step stands after the last of them. The
// elements before a shard step must come in the same order on all workers. This excludes shuffles
// and filters of random elements, which depend on the seed of each worker's iterator. It holds for
// the user's own shard(ShardHint()) as well. The datasets that concatenate() joins are divided one
// by one.
//
// Files are numbered in the order in which they are read, on through the datasets that
// concatenate() joins, so that the files that a zip() reads side by side go to the same worker.
namespace trireme {
namespace {

using internal::definitions_in;

// Returns the number of steps for which a condition holds, including those of inner definitions.
template <typename F>
int64_t count_steps(proto::DatasetDef& def, const F& condition) {
  int64_t count = 0;
  for (proto::DatasetStep& step : *def.mutable_steps()) {
    if (condition(step)) ++count;
    for (proto::DatasetDef* inner : definitions_in(step)) count += count_steps(*inner, condition);
  }
  return count;
}

// Returns the name of a step that must see the elements of all workers, or null.
const char* ordered_step(const proto::DatasetStep& step) {
  if (step.has_take()) return "take()";
  if (step.has_skip()) return "skip()";
  if (step.has_zip()) return "zip()";
  return step.has_shard() && !step.shard().is_hint() ? "shard()" : nullptr;
}

void set_shard(proto::DatasetStep& step, const InputContext& context) {
  step.mutable_shard()->set_count(context.num_input_pipelines);
  step.mutable_shard()->set_index(context.input_pipeline_id);
}

// Finds the first step that makes elements come in another order on each worker: a shuffle(), or a
// filter() of random elements. Random maps leave the order as it is.
class OrderCheck {
 public:
  // Looks at the first `steps` steps. Returns the name of the step, or null.
  const char* find(const proto::DatasetDef& def, int steps) {
    for (int i = 0; i < steps; ++i) {
      const proto::DatasetStep& step = def.steps(i);
      for (const proto::GraphDef& graph : step.map().graphs()) note(graph);
      for (const proto::GraphDef& graph : step.filter().graphs()) note(graph);
      if (step.has_shuffle()) return "shuffle()";
      if (step.has_filter() && is_random_) return "filter()";
      for (const proto::DatasetDef& other : step.zip().others()) {
        if (const char* found = find(other, other.steps_size())) return found;
      }
      const proto::DatasetDef& other = step.concatenate().other();
      if (const char* found = find(other, other.steps_size())) return found;
    }
    return nullptr;
  }

 private:
  void note(const proto::GraphDef& graph) { is_random_ = is_random_ || graph.random(); }

  bool is_random_ = false;  // true if a function draws random numbers
};

// Returns an error if the elements that a shard step gets from the first `steps` steps come in
// another order on each worker. `before` is the name of the step that follows them.
absl::Status check_order(const proto::DatasetDef& def, int steps, const char* before) {
  const char* const found = OrderCheck().find(def, steps);
  if (found == nullptr) return absl::OkStatus();
  const bool is_filter = std::string_view(found) == "filter()";
  return invalid_argument(absl::StrCat("its ", before, " comes after a ",
                                       is_filter ? "random " : "", found, ", which gives every ",
                                       "worker ", is_filter ? "other elements" : "another order",
                                       "; put ", found, " after ", before));
}

// Returns how many files the first `steps` steps read one after the other. Files that zip() joins
// are read side by side and count once.
int64_t count_files(proto::DatasetDef& def, int steps) {
  int64_t files = 0;
  for (int i = 0; i < steps; ++i) {
    proto::DatasetStep& step = *def.mutable_steps(i);
    files += step.files().names_size();
    if (!step.has_concatenate()) continue;
    proto::DatasetDef& other = *step.mutable_concatenate()->mutable_other();
    files += count_files(other, other.steps_size());
  }
  return files;
}

// Keeps the files of one worker in a source, the first of which has the number `first`.
absl::Status keep_files_of(proto::DatasetStep& source, int64_t first, const InputContext& context) {
  if (!source.has_files()) return invalid_argument("it has a source without files");
  auto& names = *source.mutable_files()->mutable_names();
  if (names.size() < context.num_input_pipelines) {
    return invalid_argument(absl::StrCat("it has ", names.size(), " files for ",
                                         context.num_input_pipelines, " workers"));
  }
  int kept = 0;
  for (int i = 0; i < names.size(); ++i) {
    const bool is_own = (first + i) % context.num_input_pipelines == context.input_pipeline_id;
    if (is_own) names.SwapElements(kept++, i);
  }
  names.DeleteSubrange(kept, names.size() - kept);
  return absl::OkStatus();
}

// Keeps the files of one worker in all sources of a definition, the first of which has the number
// `first`. Returns the reason if they cannot be divided. `zips` is true to allow zip().
absl::Status keep_files(proto::DatasetDef& def, bool zips, int64_t first,
                        const InputContext& context) {
  for (int i = 1; i < def.steps_size(); ++i) {
    proto::DatasetStep& step = *def.mutable_steps(i);
    const char* ordered = ordered_step(step);
    if (ordered != nullptr && !(step.has_zip() && zips)) {
      return invalid_argument(
          absl::StrCat("its ", ordered, " depends on the records of all files"));
    }
    for (proto::DatasetDef* inner : definitions_in(step)) {
      const int64_t files = count_files(def, i), others = count_files(*inner, inner->steps_size());
      if (step.has_zip() && files != others) {
        return invalid_argument(
            absl::StrCat("its zip() joins sources with ", files, " and ", others, " files"));
      }
    }
  }
  // From the end on, since the files of the steps before are counted.
  for (int i = def.steps_size() - 1; i > 0; --i) {
    proto::DatasetStep& step = *def.mutable_steps(i);
    const int64_t next = first + (step.has_concatenate() ? count_files(def, i) : 0);
    for (proto::DatasetDef* inner : definitions_in(step)) {
      TRIREME_RETURN_IF_ERROR(keep_files(*inner, zips, next, context));
    }
  }
  return keep_files_of(*def.mutable_steps(0), first, context);
}

// Adds a step that keeps the elements of one worker.
absl::Status keep_elements(proto::DatasetDef& def, const InputContext& context) {
  int place = def.steps_size() > 1 && def.steps(1).has_interleave() ? 2 : 1;
  const char* ordered = nullptr;
  for (int i = place; i < def.steps_size(); ++i) {
    if (ordered_step(def.steps(i)) == nullptr) continue;
    ordered = ordered_step(def.steps(i));
    place = i + 1;
  }
  TRIREME_RETURN_IF_ERROR(check_order(def, place, ordered));
  for (int i = place; i < def.steps_size(); ++i) {
    for (proto::DatasetDef* inner : definitions_in(*def.mutable_steps(i))) {
      TRIREME_RETURN_IF_ERROR(keep_elements(*inner, context));
    }
  }
  set_shard(*def.add_steps(), context);
  for (int i = def.steps_size() - 1; i > place; --i) def.mutable_steps()->SwapElements(i - 1, i);
  return absl::OkStatus();
}

bool is_hint(const proto::DatasetStep& step) {
  return step.has_shard() && step.shard().is_hint();
}

absl::Status fill_in_hints(proto::DatasetDef& def, const InputContext& context) {
  for (int i = 0; i < def.steps_size(); ++i) {
    proto::DatasetStep& step = *def.mutable_steps(i);
    if (is_hint(step)) {
      TRIREME_RETURN_IF_ERROR(check_order(def, i, "shard(ShardHint())"));
      set_shard(step, context);
    }
    for (proto::DatasetDef* inner : definitions_in(step)) {
      TRIREME_RETURN_IF_ERROR(fill_in_hints(*inner, context));
    }
  }
  return absl::OkStatus();
}

// Makes a dataset from the definition of a worker's part.
absl::StatusOr<Dataset> make_part(internal::DatasetData data) {
  const internal::SuspendDeviceCheck own;
  auto part = internal::dataset_from(std::move(data));
  if (part.ok()) return part;
  return make_status(
      error_code(part.status()),
      absl::StrCat("the part of one worker is not valid: ", describe(part.status()),
                   "; its last batch may have another size than in the whole dataset, which map() "
                   "and filter() were captured for: put them before batch(), or set drop_remainder "
                   "there"));
}

absl::StatusOr<Dataset> shard_by(const Dataset& dataset, Shard policy,
                                 const InputContext& context) {
  if (policy == Shard::kOff || context.num_input_pipelines == 1) return dataset;
  internal::DatasetData data = internal::data_of(dataset);
  const bool has_hint = count_steps(data.def, is_hint) > 0;
  if (policy == Shard::kHint && !has_hint) {
    return invalid_argument(
        "it has no step that Shard::kHint could fill in; add shard(ShardHint()) before shuffle() "
        "and batch(), or use Shard::kAuto");
  }
  if (policy == Shard::kHint || (policy == Shard::kAuto && has_hint)) {
    TRIREME_RETURN_IF_ERROR(fill_in_hints(data.def, context));
    return make_part(std::move(data));
  }
  if (policy != Shard::kData) {
    internal::DatasetData files = data;
    const absl::Status kept = keep_files(files.def, policy == Shard::kFile, 0, context);
    if (kept.ok()) return make_part(std::move(files));
    const std::string reason(kept.message());
    if (policy == Shard::kFile) {
      return invalid_argument(absl::StrCat(
          "its files cannot be divided among workers: ", reason,
          "; use Shard::kData, where each worker reads everything and keeps its part"));
    }
    if (count_steps(data.def, [](const auto& step) { return step.has_files(); }) > 0) {
      internal::warn_once(absl::StrCat(
          "dataset ", dataset.describe(), ": its files cannot be divided among workers: ", reason,
          "; each worker reads everything and keeps its part (Shard::kData)"));
    }
  }
  if (count_steps(data.def, [](const auto& step) { return step.has_generator(); }) > 0) {
    internal::warn_once(absl::StrCat(
        "dataset ", dataset.describe(),
        ": each worker generates everything and keeps its part, so that the generator must give "
        "the same order on all workers; if it uses its seed, or a loader's random sampler, some "
        "elements are used twice and others never"));
  }
  TRIREME_RETURN_IF_ERROR(keep_elements(data.def, context));
  return make_part(std::move(data));
}

// Returns the dataset with a shard step.
Dataset with_shard(const Dataset& dataset, proto::DatasetStep def) {
  return internal::Access<Dataset>::make(value_or_throw(
      internal::add_step(internal::Access<Dataset>::last(dataset), std::move(def), {})));
}

}  // namespace

Dataset shard_dataset(const Dataset& dataset, Shard policy, const InputContext& context) {
  const Origin origin{"", absl::StrCat("dataset ", dataset.describe())};
  if (policy == Shard::kDynamic) {
    throw Error(ErrorCode::kInvalidArgument,
                "Shard::kDynamic needs a coordinator, which hands out the data; pass the dataset "
                "to ClusterCoordinator::create_per_worker_dataset()",
                origin);
  }
  if (context.input_pipeline_id < 0 || context.input_pipeline_id >= context.num_input_pipelines) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("there is no worker ", context.input_pipeline_id, " among ",
                             context.num_input_pipelines,
                             "; input_pipeline_id counts from 0 up to num_input_pipelines - 1"),
                origin);
  }
  auto part = shard_by(dataset, policy, context);
  if (!part.ok()) throw to_error(with_origin(part.status(), origin));
  return *std::move(part);
}

Dataset Dataset::shard(int64_t count, int64_t index) const {
  proto::DatasetStep def;
  def.mutable_shard()->set_count(count);
  def.mutable_shard()->set_index(index);
  return with_shard(*this, std::move(def));
}

Dataset Dataset::shard(const InputContext& context) const {
  return shard(context.num_input_pipelines, context.input_pipeline_id);
}

Dataset Dataset::shard(ShardHint) const {
  proto::DatasetStep def;
  def.mutable_shard()->set_count(1);
  def.mutable_shard()->set_is_hint(true);
  return with_shard(*this, std::move(def));
}

}  // namespace trireme
