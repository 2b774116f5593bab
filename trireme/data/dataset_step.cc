#include "trireme/data/dataset_step.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/example_element.h"
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

constexpr int kMostSteps = 100;
constexpr double kMostBytes = 64.0 * (1 << 30);  // limit for what one step holds at once
constexpr double kMostReads = 4.0 * (1 << 30);   // limit for reads from the source for one element
constexpr double kElementOverheadBytes = 128;    // memory of an element beside its contents

using Kind = proto::DatasetStep::KindCase;

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kRange:
      return "range";
    case Kind::kTensors:
      return "from_tensors";
    case Kind::kBatch:
      return "batch";
    case Kind::kShuffle:
      return "shuffle";
    case Kind::kRepeat:
      return "repeat";
    case Kind::kTake:
      return "take";
    case Kind::kSkip:
      return "skip";
    case Kind::kMap:
      return "map";
    case Kind::KIND_NOT_SET:
      break;
  }
  return "unknown";
}

absl::Status check_count(const char* what, int64_t count, int64_t least) {
  if (count >= least) return absl::OkStatus();
  return invalid_argument(
      absl::StrCat("its ", what, " is ", count, "; it must be at least ", least));
}

absl::Status check_bytes(double bytes) {
  if (bytes <= kMostBytes) return absl::OkStatus();
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("it would hold ", bytes, " bytes at once; at most ", kMostBytes,
                                  " are allowed; make its size smaller"));
}

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
  step.yields_rows = true;
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
  step.yields_rows = true;
  step.specs = {std::move(spec)};
  return absl::OkStatus();
}

// The number of elements is known, so the shape of the last batch is too.
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
  const auto stacked = [&](int64_t size) {
    ElementSpec spec = input.specs[0];
    for (TensorSpec& tensor : spec) tensor.sizes.insert(tensor.sizes.begin(), size);
    return spec;
  };
  const int64_t remainder = input.count == kEndless ? 0 : input.count % batch.size();
  const bool dropped = remainder == 0 || batch.drop_remainder();
  step.specs.clear();
  if (dropped || input.count >= batch.size()) step.specs = {stacked(batch.size())};
  if (!dropped) step.specs.push_back(stacked(remainder));
  step.count = input.count == kEndless ? kEndless : input.count / batch.size() + (dropped ? 0 : 1);
  const double held = static_cast<double>(std::min(batch.size(), input.count));
  step.reads = input.reads * held;
  step.yields_rows = false;
  return check_bytes(held * (bytes_of(input.specs[0]) + kElementOverheadBytes));
}

// The buffer is filled before the first element. It holds row numbers as long as elements are rows.
absl::Status add_shuffle(DatasetStep& step) {
  const int64_t buffer = step.def.shuffle().buffer();
  TRIREME_RETURN_IF_ERROR(check_count("buffer", buffer, 1));
  const double held = static_cast<double>(std::min(buffer, step.count));
  step.first_reads += held * step.reads;
  const double bytes =
      step.yields_rows ? sizeof(int64_t) : bytes_of(step.specs[0]) + kElementOverheadBytes;
  return check_bytes(held * bytes);
}

absl::Status add_repeat(DatasetStep& step) {
  const int64_t count = step.def.repeat().count();
  TRIREME_RETURN_IF_ERROR(check_count("count", count, 0));
  // The reads before the first element are made again in each repetition.
  step.reads += step.first_reads / std::max<double>(1, static_cast<double>(step.count));
  if (__builtin_mul_overflow(step.count, count, &step.count)) step.count = kEndless;
  return absl::OkStatus();
}

absl::Status add_take(DatasetStep& step) {
  TRIREME_RETURN_IF_ERROR(check_count("count", step.def.take().count(), 0));
  step.count = std::min(step.count, step.def.take().count());
  return absl::OkStatus();
}

absl::Status add_skip(DatasetStep& step) {
  TRIREME_RETURN_IF_ERROR(check_count("count", step.def.skip().count(), 0));
  const int64_t skipped = std::min(step.count, step.def.skip().count());
  step.first_reads += static_cast<double>(skipped) * step.reads;
  if (step.count != kEndless) step.count -= skipped;
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

absl::Status add_map(DatasetStep& step) {
  const std::vector<ElementSpec> inputs = std::exchange(step.specs, {});
  std::vector<at::Tensor> rows = std::exchange(step.tensors, {});
  if (step.def.map().graphs_size() != static_cast<int>(inputs.size())) {
    return invalid_argument(absl::StrCat("it has ", step.def.map().graphs_size(),
                                         " graphs for elements of ", inputs.size(), " shapes"));
  }
  auto next = rows.begin();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const proto::GraphDef& def = step.def.map().graphs(static_cast<int>(i));
    const auto end = next + def.constants_size();
    TRIREME_ASSIGN_OR_RETURN(auto graph, assemble_graph(def, std::vector<at::Tensor>(next, end)));
    next = end;
    TRIREME_ASSIGN_OR_RETURN(auto plan, compile(std::move(graph)));
    step.plans.push_back(std::move(plan));
    TRIREME_ASSIGN_OR_RETURN(ElementSpec spec, mapped_spec(def, inputs[i]));
    if (std::find(step.specs.begin(), step.specs.end(), spec) == step.specs.end()) {
      step.specs.push_back(std::move(spec));
    }
  }
  step.yields_rows = false;
  return absl::OkStatus();
}

absl::Status add(DatasetStep& step) {
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
    case Kind::KIND_NOT_SET:
      break;
  }
  return make_status(ErrorCode::kVersionMismatch,
                     "this version of Trireme does not know this kind of step");
}

absl::Status add_checked(DatasetStep& step) {
  const Kind kind = step.def.kind_case();
  const bool is_source = kind == Kind::kRange || kind == Kind::kTensors;
  if (is_source != (step.input == nullptr)) {
    return invalid_argument(is_source ? "a source must be at the beginning"
                                      : "it has no source before it");
  }
  if (step.number >= kMostSteps) {
    return invalid_argument(absl::StrCat("a dataset has at most ", kMostSteps, " steps"));
  }
  if (static_cast<int64_t>(step.tensors.size()) != tensor_count(step.def)) {
    return invalid_argument(absl::StrCat("it uses ", tensor_count(step.def), " tensors, but has ",
                                         step.tensors.size()));
  }
  TRIREME_RETURN_IF_ERROR(add(step));
  if (step.first_reads + step.reads > kMostReads) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("it reads ", step.first_reads + step.reads,
                                    " elements of the source for one element; at most ", kMostReads,
                                    " are allowed; make its size smaller"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DatasetStepPtr> add_step(DatasetStepPtr input, proto::DatasetStep def,
                                        std::vector<at::Tensor> tensors) {
  auto step = std::make_shared<DatasetStep>();
  if (input != nullptr) {
    step->number = input->number + 1;
    step->specs = input->specs;
    step->count = input->count;
    step->yields_rows = input->yields_rows;
    step->first_reads = input->first_reads;
    step->reads = input->reads;
  }
  step->input = std::move(input);
  step->def = std::move(def);
  step->tensors = std::move(tensors);
  const absl::Status status = add_checked(*step);
  if (status.ok()) return DatasetStepPtr(std::move(step));
  // The step becomes the origin of the error; an origin inside its graph moves into the text.
  return make_status(error_code(status), trireme::describe(status),
                     {"", absl::StrCat("dataset step ", step->number, " '",
                                       kind_name(step->def.kind_case()), "'")});
}

int64_t tensor_count(const proto::DatasetStep& def) {
  int64_t tensors = def.tensors().count();
  for (const proto::GraphDef& graph : def.map().graphs()) tensors += graph.constants_size();
  return tensors;
}

namespace {

// Returns how many items a stream draws by itself to skip elements of a step. Shuffles draw each,
// and have to draw again only those of the current repetition.
double skip_reads(const DatasetStep& step, double elements) {
  const double count = std::min(elements, static_cast<double>(step.count));
  switch (step.def.kind_case()) {
    case Kind::kBatch:
      return skip_reads(*step.input, count * static_cast<double>(step.def.batch().size()));
    case Kind::kShuffle:
      return count +
             skip_reads(*step.input, count + static_cast<double>(step.def.shuffle().buffer()));
    case Kind::kSkip:
      return skip_reads(*step.input, count + static_cast<double>(step.def.skip().count()));
    default:
      return step.input == nullptr ? 0 : skip_reads(*step.input, count);
  }
}

}  // namespace

absl::Status check_skip(const DatasetStep& step, uint64_t elements) {
  const double reads = skip_reads(step, static_cast<double>(elements));
  if (reads <= kMostReads) return absl::OkStatus();
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("to continue after ", elements, " elements, it would shuffle ",
                                  reads, " elements again; at most ", kMostReads,
                                  " are allowed; put shuffle() before repeat()"),
                     {"", absl::StrCat("dataset ", describe_steps(step))});
}

std::string describe_steps(const DatasetStep& step) {
  const proto::DatasetStep& def = step.def;
  const auto arguments = [&]() -> std::string {
    switch (def.kind_case()) {
      case Kind::kRange:
        return absl::StrCat(def.range().begin(), ", ", def.range().end(),
                            def.range().step() == 1 ? "" : absl::StrCat(", ", def.range().step()));
      case Kind::kTensors: {
        const std::string spec = to_string(spec_of(step.tensors));
        return spec.substr(1, spec.size() - 2);
      }
      case Kind::kBatch:
        return absl::StrCat(def.batch().size());
      case Kind::kShuffle:
        return absl::StrCat(def.shuffle().buffer());
      case Kind::kRepeat:
        return def.repeat().count() == kEndless ? "" : absl::StrCat(def.repeat().count());
      case Kind::kTake:
        return absl::StrCat(def.take().count());
      case Kind::kSkip:
        return absl::StrCat(def.skip().count());
      case Kind::kMap:
        return def.map().graphs(0).name();
      case Kind::KIND_NOT_SET:
        break;
    }
    return "";
  };
  return absl::StrCat(step.input ? describe_steps(*step.input) + "." : "",
                      kind_name(def.kind_case()), "(", arguments(), ")");
}

}  // namespace trireme::internal
