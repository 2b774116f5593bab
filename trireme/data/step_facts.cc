#include "trireme/data/step_facts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/example_element.h"
#include "trireme/data/file_facts.h"
#include "trireme/data/rebatch_step.h"
#include "trireme/data/step_limits.h"
#include "trireme/graph/graph_file.h"
#include "trireme/tensor/dtype.h"

// A step starts as a copy of what its input says of elements: their specifications, their number
// and their cost. An add_* function per kind checks the arguments and updates these facts.
// Definitions arrive from other processes, so the facts also serve as limits. A worker must not be
// made to hold more than kMostBytes (a batch or a shuffle buffer), nor to read more than kMostReads
// elements of the source for a single element (a large skip or batch, or several steps whose costs
// multiply). Both are computed in floating point: huge arguments give huge numbers and no overflow.
namespace trireme::internal {
namespace {

using Kind = proto::DatasetStep::KindCase;

constexpr double kElementOverheadBytes = 128;  // memory of an element beside its contents
constexpr uint32_t kMostThreads = 256;
constexpr int64_t kMostShards = int64_t{1} << 31;

absl::Status add_range(DatasetStep& step) {
  const auto& range = step.def.range();
  if (range.step() == 0) return invalid_argument("its step is 0; use a positive or negative one");
  // Unsigned, since the distance of two int64 numbers may not fit into an int64.
  const uint64_t begin = range.begin(), end = range.end(), by = range.step();
  const bool up = range.step() > 0;
  if (up ? range.begin() < range.end() : range.begin() > range.end()) {
    const uint64_t count = ((up ? end - begin : begin - end) - 1) / (up ? by : 0 - by) + 1;
    if (count >= uint64_t{kEndless})
      return invalid_argument("it has more elements than can be counted");
    step.count = static_cast<int64_t>(count);
  }
  step.items = Items::kRows;
  step.specs = {{{at::kLong, {}}}};
  return absl::OkStatus();
}

absl::Status add_tensors(DatasetStep& step) {
  if (step.tensors.empty()) return invalid_argument("it has no tensors; give at least one");
  ElementSpec spec;
  for (size_t i = 0; i < step.tensors.size(); ++i) {
    at::Tensor& tensor = step.tensors[i];
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.dim() == 0) {
      return invalid_argument(
          absl::StrCat("tensor ", i, " has no rows; give a dense tensor that has an axis 0"));
    }
    if (tensor.size(0) != step.tensors[0].size(0)) {
      return invalid_argument(absl::StrCat("tensor ", i, " has ", tensor.size(0),
                                           " rows, but tensor 0 has ", step.tensors[0].size(0),
                                           "; all tensors must have the same number of rows"));
    }
    tensor = tensor.detach().contiguous();
    spec.push_back({tensor.scalar_type(), tensor.sizes().slice(1).vec()});
  }
  step.count = step.tensors[0].size(0);
  step.items = Items::kRows;
  step.specs = {std::move(spec)};
  return absl::OkStatus();
}

ElementSpec stacked(ElementSpec spec, int64_t size) {
  for (TensorSpec& tensor : spec) tensor.sizes.insert(tensor.sizes.begin(), size);
  return spec;
}

// Sets specifications and number of batches of `size` elements like `spec`. If the number of
// elements is known, so is the shape of the last batch.
void set_batches(DatasetStep& step, const ElementSpec& spec, int64_t size, bool drop_remainder) {
  const int64_t count = step.input->count;
  step.items = Items::kElements;
  step.specs.clear();
  if (count == kUnknownCount) {
    step.specs = {stacked(spec, size)};
    if (!drop_remainder && size > 1) step.specs.push_back(stacked(spec, -1));
    return;
  }
  const int64_t remainder = count == kEndless ? 0 : count % size;
  const bool dropped = remainder == 0 || drop_remainder;
  if (dropped || count >= size) step.specs = {stacked(spec, size)};
  if (!dropped) step.specs.push_back(stacked(spec, remainder));
  step.count = count == kEndless ? kEndless : count / size + (dropped ? 0 : 1);
}

absl::Status add_batch(DatasetStep& step) {
  const auto& batch = step.def.batch();
  TRIREME_RETURN_IF_ERROR(check_count("size", batch.size(), 1));
  const DatasetStep& input = *step.input;
  if (input.specs.size() > 1) {
    return invalid_argument(
        absl::StrCat("its elements have two shapes, ", to_string(input.specs[0]), " and ",
                     to_string(input.specs[1]),
                     ", and cannot be stacked; set drop_remainder in the batch before it"));
  }
  if (!has_fixed_sizes(input.specs[0])) {
    return invalid_argument(absl::StrCat("its elements, ", to_string(input.specs[0]),
                                         ", differ in size and cannot be stacked; use "
                                         "padded_batch()"));
  }
  const double held = at_most(input.count, batch.size());
  step.reads = input.reads * held;
  set_batches(step, input.specs[0], batch.size(), batch.drop_remainder());
  return check_bytes(held * (bytes_of(input.specs[0]) + kElementOverheadBytes));
}

// Returns the shapes that elements have after they were filled up; -1 if the batch decides.
absl::StatusOr<ElementSpec> padded_spec(const proto::DatasetStep::PaddedBatch& batch,
                                        const ElementSpec& input) {
  ElementSpec spec = input;
  if (batch.tensors_size() == 0) return spec;
  const std::string given = absl::StrCat("its sizes are for ", batch.tensors_size(),
                                         " tensors, but elements are ", to_string(input));
  if (batch.tensors_size() != static_cast<int>(input.size())) return invalid_argument(given);
  for (size_t i = 0; i < input.size(); ++i) {
    const auto& sizes = batch.tensors(static_cast<int>(i)).sizes();
    if (sizes.size() != static_cast<int>(input[i].sizes.size())) return invalid_argument(given);
    for (int axis = 0; axis < sizes.size(); ++axis) {
      const int64_t to = sizes[axis], from = input[i].sizes[axis];
      if (to < -1 || (to != -1 && from > to)) {
        return invalid_argument(
            absl::StrCat("tensor ", i, " cannot be filled up from size ", from, " to size ", to));
      }
      if (to != -1) spec[i].sizes[axis] = to;
    }
  }
  return spec;
}

absl::Status add_padded_batch(DatasetStep& step) {
  const auto& batch = step.def.padded_batch();
  TRIREME_RETURN_IF_ERROR(check_count("size", batch.size(), 1));
  if (step.input->specs.size() > 1) {
    return invalid_argument(
        "its elements are batches, the last of which is smaller; set drop_remainder in the batch "
        "before it");
  }
  TRIREME_ASSIGN_OR_RETURN(const ElementSpec spec, padded_spec(batch, step.input->specs[0]));
  const double held = at_most(step.input->count, batch.size());
  step.reads *= held;
  set_batches(step, spec, batch.size(), batch.drop_remainder());
  return check_bytes(held * (bytes_of(spec) + kElementOverheadBytes));
}

// The buffer is filled before the first element. It holds row numbers as long as elements are rows.
absl::Status add_shuffle(DatasetStep& step) {
  const int64_t buffer = step.def.shuffle().buffer();
  TRIREME_RETURN_IF_ERROR(check_count("buffer", buffer, 1));
  const double held = at_most(step.count, buffer);
  step.first_reads += held * step.reads;
  step.is_random = true;
  const double bytes = step.items == Items::kRows ? sizeof(int64_t)
                                                  : bytes_of(step.specs[0]) + kElementOverheadBytes;
  return check_bytes(held * bytes);
}

absl::Status add_repeat(DatasetStep& step) {
  const int64_t count = step.def.repeat().count();
  TRIREME_RETURN_IF_ERROR(check_count("count", count, 0));
  // The reads before the first element are made again in each repetition. Among how many elements
  // they are divided is not known of files and filters. Then they are left out: a repetition reads
  // its source at most once.
  if (step.count != kUnknownCount) {
    step.reads += step.first_reads / std::max<double>(1, static_cast<double>(step.count));
  }
  if (step.count == kUnknownCount) {
    step.count = count == 0 ? 0 : count == kEndless ? kEndless : kUnknownCount;
  } else if (__builtin_mul_overflow(step.count, count, &step.count)) {
    step.count = kEndless;
  }
  return absl::OkStatus();
}

absl::Status add_take(DatasetStep& step) {
  TRIREME_RETURN_IF_ERROR(check_count("count", step.def.take().count(), 0));
  const int64_t count = step.def.take().count();
  if (step.count != kUnknownCount || count == 0) step.count = std::min(step.count, count);
  if (count == 0) step.count = 0;
  return absl::OkStatus();
}

absl::Status add_skip(DatasetStep& step) {
  TRIREME_RETURN_IF_ERROR(check_count("count", step.def.skip().count(), 0));
  const int64_t count = step.def.skip().count();
  step.first_reads += at_most(step.count, count) * step.reads;
  if (step.count != kEndless && step.count != kUnknownCount) {
    step.count -= std::min(step.count, count);
  }
  return absl::OkStatus();
}

// Returns the specification of the elements that a map's graph makes from elements like `input`.
absl::StatusOr<ElementSpec> mapped_spec(const proto::GraphDef& def, const ElementSpec& input) {
  if (def.variables_size() > 0) {
    return invalid_argument(absl::StrCat("its function uses variable '", def.variables(0).name(),
                                         "'; the function of a map may use constants only"));
  }
  if (def.receives_size() > 0 || def.sends_size() > 0) {
    return invalid_argument("its graph is one task's part of another graph");
  }
  if (def.inputs() != input.size()) {
    return invalid_argument(absl::StrCat("its function takes ", def.inputs(),
                                         " tensors, but elements are ", to_string(input)));
  }
  ElementSpec spec;
  for (int64_t value : def.outputs()) {
    if (value < 0 || value >= def.values_size() || def.values(value).type().sparse()) {
      return invalid_argument("its function returns an undefined or a sparse tensor");
    }
    const proto::TensorType& type = def.values(value).type();
    const auto dtype = static_cast<c10::ScalarType>(type.dtype());
    TRIREME_RETURN_IF_ERROR(dtype_to_wire(dtype).status());
    spec.push_back({dtype, {type.sizes().begin(), type.sizes().end()}});
    for (int64_t size : type.sizes()) TRIREME_RETURN_IF_ERROR(check_count("result", size, 0));
  }
  if (spec.empty())
    return invalid_argument("its function returns no tensor; return the new element");
  TRIREME_RETURN_IF_ERROR(check_bytes(bytes_of(spec)));
  return spec;
}

// Compiles the graphs of a map or a filter, one for each shape of the input, and returns what each
// of them makes of an element.
absl::StatusOr<std::vector<ElementSpec>> add_graphs(
    DatasetStep& step, const google::protobuf::RepeatedPtrField<proto::GraphDef>& graphs) {
  const std::vector<ElementSpec>& inputs = step.input->specs;
  for (const ElementSpec& spec : inputs) {
    if (has_fixed_sizes(spec)) continue;
    return invalid_argument(absl::StrCat(
        "its elements are ", to_string(spec),
        ", where -1 is a size that is not known before they "
        "are read; put it before batch(), set drop_remainder there, or give padded_batch() sizes"));
  }
  std::vector<at::Tensor> rows = std::exchange(step.tensors, {});
  if (graphs.size() != static_cast<int>(inputs.size())) {
    return invalid_argument(absl::StrCat("it has ", graphs.size(), " graphs for elements of ",
                                         inputs.size(), " shapes"));
  }
  std::vector<ElementSpec> specs;
  auto next = rows.begin();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const proto::GraphDef& def = graphs[static_cast<int>(i)];
    const auto end = next + def.constants_size();
    TRIREME_ASSIGN_OR_RETURN(auto graph, assemble_graph(def, std::vector<at::Tensor>(next, end)));
    next = end;
    TRIREME_ASSIGN_OR_RETURN(auto plan, compile(std::move(graph)));
    step.plans.push_back(std::move(plan));
    TRIREME_ASSIGN_OR_RETURN(specs.emplace_back(), mapped_spec(def, inputs[i]));
    step.is_random = step.is_random || def.random();
  }
  return specs;
}

absl::Status add_map(DatasetStep& step) {
  TRIREME_ASSIGN_OR_RETURN(std::vector<ElementSpec> specs,
                           add_graphs(step, step.def.map().graphs()));
  if (step.def.map().threads() > kMostThreads) {
    return invalid_argument(absl::StrCat("it has ", step.def.map().threads(), " threads; at most ",
                                         kMostThreads, " are allowed"));
  }
  step.specs.clear();
  for (ElementSpec& spec : specs) {
    if (std::find(step.specs.begin(), step.specs.end(), spec) == step.specs.end()) {
      step.specs.push_back(std::move(spec));
    }
  }
  step.items = Items::kElements;
  return absl::OkStatus();
}

absl::Status add_filter(DatasetStep& step) {
  TRIREME_ASSIGN_OR_RETURN(const std::vector<ElementSpec> specs,
                           add_graphs(step, step.def.filter().graphs()));
  for (const ElementSpec& spec : specs) {
    if (spec != ElementSpec{{at::kBool, {}}}) {
      return invalid_argument(absl::StrCat("its function returns ", to_string(spec),
                                           "; it must return one bool without axes, as x > 0"));
    }
  }
  step.varies = step.varies || step.is_random;
  if (step.count != 0) step.count = kUnknownCount;
  return absl::OkStatus();
}

absl::Status add_shard(DatasetStep& step) {
  const auto& shard = step.def.shard();
  TRIREME_RETURN_IF_ERROR(check_count("count", shard.count(), 1));
  TRIREME_RETURN_IF_ERROR(check_count("index", shard.index(), 0));
  if (shard.index() >= shard.count()) {
    return invalid_argument(
        absl::StrCat("its index is ", shard.index(), ", and it has ", shard.count(), " shards"));
  }
  if (shard.count() > kMostShards) {
    return invalid_argument(
        absl::StrCat("it has ", shard.count(), " shards; at most ", kMostShards, " are allowed"));
  }
  step.reads *= at_most(step.count, shard.count());
  if (step.count == kEndless || step.count == kUnknownCount) return absl::OkStatus();
  step.count = step.count / shard.count() + (step.count % shard.count() > shard.index() ? 1 : 0);
  return absl::OkStatus();
}

// Adds what the other inputs cost.
void add_others(DatasetStep& step) {
  for (const DatasetStepPtr& other : step.others) {
    step.first_reads += other->first_reads;
    step.reads += other->reads;
    step.is_random = step.is_random || other->is_random;
    step.varies = step.varies || other->varies;
  }
  step.items = Items::kElements;
}

absl::Status add_zip(DatasetStep& step) {
  add_others(step);
  for (const DatasetStepPtr& other : step.others) {
    if (step.specs.size() > 1 || other->specs.size() > 1) {
      return invalid_argument(
          "it has batches, the last of which is smaller; put batch() after zip()");
    }
    step.specs[0].insert(step.specs[0].end(), other->specs[0].begin(), other->specs[0].end());
    const bool unknown = step.count == kUnknownCount || other->count == kUnknownCount;
    step.count = unknown ? kUnknownCount : std::min(step.count, other->count);
  }
  return absl::OkStatus();
}

absl::Status add_concatenate(DatasetStep& step) {
  add_others(step);
  const DatasetStep& other = *step.others[0];
  for (const ElementSpec& spec : other.specs) {
    if (std::find(step.specs.begin(), step.specs.end(), spec) == step.specs.end()) {
      step.specs.push_back(spec);
    }
  }
  for (const ElementSpec& spec : step.specs) {
    const auto is_like = [](const TensorSpec& a, const TensorSpec& b) {
      return a.dtype == b.dtype && a.sizes.size() == b.sizes.size();
    };
    if (!std::ranges::equal(spec, step.specs[0], is_like)) {
      return invalid_argument(absl::StrCat("its elements are ", to_string(step.specs[0]), " and ",
                                           to_string(spec), "; they must have the same types"));
    }
  }
  if (step.count == kEndless || other.count == kEndless) {
    step.count = kEndless;
  } else if (step.count == kUnknownCount || other.count == kUnknownCount) {
    step.count = kUnknownCount;
  } else if (__builtin_add_overflow(step.count, other.count, &step.count)) {
    step.count = kEndless;
  }
  return absl::OkStatus();
}

absl::Status add_interleave(DatasetStep& step) {
  if (!step.input->def.has_files()) {
    return invalid_argument("it must follow directly on a source of files");
  }
  TRIREME_RETURN_IF_ERROR(check_count("cycle", step.def.interleave().cycle(), 1));
  return check_count("block_length", step.def.interleave().block_length(), 1);
}

absl::Status add_cache(DatasetStep& step) {
  if (step.count == kEndless) {
    return invalid_argument("its elements never end; put cache() before repeat()");
  }
  step.items = Items::kElements;
  step.is_random = step.varies = false;  // all repetitions give the elements of the first one
  return step.count == kUnknownCount
             ? absl::OkStatus()
             : check_bytes(static_cast<double>(step.count) *
                           (bytes_of(step.specs[0]) + kElementOverheadBytes));
}

absl::Status add_prefetch(DatasetStep& step) {
  const int64_t count = step.def.prefetch().count();
  TRIREME_RETURN_IF_ERROR(check_count("count", count, 1));
  step.items = Items::kElements;
  return check_bytes(static_cast<double>(count) *
                     (bytes_of(step.specs[0]) + kElementOverheadBytes));
}

}  // namespace

absl::Status add_facts(DatasetStep& step) {
  switch (step.def.kind_case()) {
    case Kind::kRange:
      return add_range(step);
    case Kind::kTensors:
      return add_tensors(step);
    case Kind::kBatch:
      return add_batch(step);
    case Kind::kShuffle:
      return add_shuffle(step);
    case Kind::kRepeat:
      return add_repeat(step);
    case Kind::kTake:
      return add_take(step);
    case Kind::kSkip:
      return add_skip(step);
    case Kind::kMap:
      return add_map(step);
    case Kind::kFiles:
      return add_files(step);
    case Kind::kFilter:
      return add_filter(step);
    case Kind::kPaddedBatch:
      return add_padded_batch(step);
    case Kind::kShard:
      return add_shard(step);
    case Kind::kZip:
      return add_zip(step);
    case Kind::kConcatenate:
      return add_concatenate(step);
    case Kind::kInterleave:
      return add_interleave(step);
    case Kind::kCache:
      return add_cache(step);
    case Kind::kPrefetch:
      return add_prefetch(step);
    case Kind::kGenerator:
      return add_generator(step);
    case Kind::kRebatch:
      TRIREME_RETURN_IF_ERROR(add_rebatch(step));
      return check_bytes(bytes_of(step.specs[0]));
    case Kind::KIND_NOT_SET:
      break;
  }
  return make_status(ErrorCode::kVersionMismatch,
                     "this version of Trireme does not know this kind of step");
}

}  // namespace trireme::internal
