#include "trireme/data/dataset_steps.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/data/element.h"
#include "trireme/data/file_facts.h"
#include "trireme/data/step_facts.h"
#include "trireme/data/step_limits.h"
#include "trireme/graph/graph_file.h"

namespace trireme::internal {
namespace {

constexpr uint32_t kDatasetFormat = 1;
constexpr int kMostSteps = 100;

using StepKind = proto::DatasetStep::KindCase;

const char* kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kRange:
      return "range";
    case StepKind::kTensors:
      return "from_tensors";
    case StepKind::kBatch:
      return "batch";
    case StepKind::kShuffle:
      return "shuffle";
    case StepKind::kRepeat:
      return "repeat";
    case StepKind::kTake:
      return "take";
    case StepKind::kSkip:
      return "skip";
    case StepKind::kMap:
      return "map";
    case StepKind::kFiles:
      return "files";
    case StepKind::kGenerator:
      return "generator";
    case StepKind::kFilter:
      return "filter";
    case StepKind::kPaddedBatch:
      return "padded_batch";
    case StepKind::kShard:
      return "shard";
    case StepKind::kZip:
      return "zip";
    case StepKind::kConcatenate:
      return "concatenate";
    case StepKind::kInterleave:
      return "interleave";
    case StepKind::kCache:
      return "cache";
    case StepKind::kPrefetch:
      return "prefetch";
    case StepKind::kRebatch:
      return "rebatch";
    case StepKind::KIND_NOT_SET:
      break;
  }
  return "unknown";
}

// Makes the inputs after the first one, whose tensors follow each other.
absl::Status make_others(DatasetStep& step) {
  std::vector<const proto::DatasetDef*> defs;
  for (const proto::DatasetDef& def : step.def.zip().others()) defs.push_back(&def);
  if (step.def.has_concatenate()) defs.push_back(&step.def.concatenate().other());
  if (defs.empty()) return absl::OkStatus();
  const std::vector<at::Tensor> tensors = std::exchange(step.tensors, {});
  auto next = tensors.begin();
  for (const proto::DatasetDef* def : defs) {
    const auto end = next + tensor_count(*def);
    TRIREME_ASSIGN_OR_RETURN(step.others.emplace_back(),
                             make_steps(*def, std::vector<at::Tensor>(next, end)));
    next = end;
  }
  return absl::OkStatus();
}

absl::Status add_checked(DatasetStep& step) {
  const StepKind kind = step.def.kind_case();
  const bool is_source = kind == StepKind::kRange || kind == StepKind::kTensors ||
                         kind == StepKind::kFiles || kind == StepKind::kGenerator;
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
  TRIREME_RETURN_IF_ERROR(make_others(step));
  TRIREME_RETURN_IF_ERROR(add_facts(step));
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
    step->items = input->items;
    step->is_random = input->is_random;
    step->varies = input->varies;
    step->first_reads = input->first_reads;
    step->reads = input->reads;
  }
  step->input = std::move(input);
  step->def = std::move(def);
  step->tensors = std::move(tensors);
  const absl::Status status = add_checked(*step);
  if (status.ok()) return DatasetStepPtr(std::move(step));
  // The step becomes the origin of the error; an origin inside its graph moves into the text.
  return make_status(
      error_code(status), trireme::describe(status),
      {"", absl::StrCat("dataset step ", step->number, " '", kind_name(*step), "'")});
}

int64_t tensor_count(const proto::DatasetStep& def) {
  int64_t tensors = def.tensors().count();
  for (const proto::GraphDef& graph : def.map().graphs()) tensors += graph.constants_size();
  for (const proto::GraphDef& graph : def.filter().graphs()) tensors += graph.constants_size();
  for (const proto::DatasetDef& other : def.zip().others()) tensors += tensor_count(other);
  return tensors + (def.has_concatenate() ? tensor_count(def.concatenate().other()) : 0);
}

int64_t tensor_count(const proto::DatasetDef& def) {
  int64_t tensors = 0;
  for (const proto::DatasetStep& step : def.steps()) tensors += tensor_count(step);
  return tensors;
}

std::vector<proto::DatasetDef*> definitions_in(proto::DatasetStep& step) {
  std::vector<proto::DatasetDef*> definitions;
  if (step.has_zip()) {
    for (proto::DatasetDef& other : *step.mutable_zip()->mutable_others()) {
      definitions.push_back(&other);
    }
  }
  if (step.has_concatenate()) {
    definitions.push_back(step.mutable_concatenate()->mutable_other());
  }
  return definitions;
}

absl::StatusOr<DatasetStepPtr> make_steps(const proto::DatasetDef& def,
                                          std::vector<at::Tensor> tensors) {
  const Origin dataset{"", "dataset"};
  if (def.format() != kDatasetFormat) {
    return make_status(ErrorCode::kVersionMismatch,
                       absl::StrCat("it has format ", def.format(), "; this version reads format ",
                                    kDatasetFormat),
                       dataset);
  }
  if (def.steps_size() == 0) {
    return make_status(ErrorCode::kInvalidArgument, "it has no steps", dataset);
  }
  DatasetStepPtr last;
  auto next = tensors.begin();
  for (const proto::DatasetStep& step : def.steps()) {
    // A step may claim more tensors than there are; add_step() rejects it then.
    const auto end = next + std::min<int64_t>(tensor_count(step), tensors.end() - next);
    TRIREME_ASSIGN_OR_RETURN(last,
                             add_step(std::move(last), step, std::vector<at::Tensor>(next, end)));
    next = end;
  }
  if (next == tensors.end()) return last;
  return make_status(
      ErrorCode::kInvalidArgument,
      absl::StrCat("it has ", tensors.end() - next, " more tensors than its steps use"), dataset);
}

void write_steps(const DatasetStep& last, proto::DatasetDef& def,
                 std::vector<at::Tensor>& tensors) {
  if (last.input != nullptr) write_steps(*last.input, def, tensors);
  def.set_format(kDatasetFormat);
  *def.add_steps() = last.def;
  tensors.insert(tensors.end(), last.tensors.begin(), last.tensors.end());
  for (const auto& plan : last.plans) {
    for (at::Tensor& row : constant_rows(*plan->graph)) tensors.push_back(std::move(row));
  }
  for (const DatasetStepPtr& other : last.others) {
    proto::DatasetDef ignored;  // the definition of the step contains it
    write_steps(*other, ignored, tensors);
  }
}

// Shuffles draw each, and have to draw again only those of the current repetition. Filters and
// generators make each.
double skip_reads(const DatasetStep& step, double elements) {
  const double count =
      step.count == kUnknownCount ? elements : std::min(elements, static_cast<double>(step.count));
  switch (step.def.kind_case()) {
    case StepKind::kBatch:
      return skip_reads(*step.input, count * static_cast<double>(step.def.batch().size()));
    case StepKind::kShuffle:
      return count +
             skip_reads(*step.input, count + static_cast<double>(step.def.shuffle().buffer()));
    case StepKind::kRepeat: {
      // Elements whose number is not known are drawn in the first and in the current repetition
      // only. Repeated::skip() limits them, once it knows their number.
      const bool is_counted = step.input->count == kUnknownCount && !step.input->varies;
      return skip_reads(*step.input, is_counted ? 0 : count);
    }
    case StepKind::kSkip:
      return skip_reads(*step.input, count + static_cast<double>(step.def.skip().count()));
    case StepKind::kGenerator:
      return count;
    case StepKind::kFilter:
      return count + skip_reads(*step.input, count);
    case StepKind::kPaddedBatch:
      return skip_reads(*step.input, count * static_cast<double>(step.def.padded_batch().size()));
    case StepKind::kShard:
      return skip_reads(*step.input, count * static_cast<double>(step.def.shard().count()));
    default: {
      double reads = step.input == nullptr ? 0 : skip_reads(*step.input, count);
      for (const DatasetStepPtr& other : step.others) reads += skip_reads(*other, count);
      return reads;
    }
  }
}

absl::Status check_skip(const DatasetStep& step, uint64_t elements) {
  const double reads = skip_reads(step, static_cast<double>(elements));
  if (reads <= kMostReads) return absl::OkStatus();
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("to continue after ", elements, " elements, it would draw ",
                                  reads, " elements again; at most ", kMostReads,
                                  " are allowed; put shuffle() before repeat(), and cache() after "
                                  "a generator or a random filter()"),
                     {"", absl::StrCat("dataset ", describe_steps(step))});
}

const char* kind_name(const DatasetStep& step) {
  return step.def.has_files() ? format_name(step.def.files()) : kind_name(step.def.kind_case());
}

std::string describe_steps(const DatasetStep& step) {
  const proto::DatasetStep& def = step.def;
  const auto arguments = [&]() -> std::string {
    switch (def.kind_case()) {
      case StepKind::kRange:
        return absl::StrCat(def.range().begin(), ", ", def.range().end(),
                            def.range().step() == 1 ? "" : absl::StrCat(", ", def.range().step()));
      case StepKind::kTensors: {
        const std::string spec = to_string(spec_of(step.tensors));
        return spec.substr(1, spec.size() - 2);
      }
      case StepKind::kBatch:
        return absl::StrCat(def.batch().size());
      case StepKind::kShuffle:
        return absl::StrCat(def.shuffle().buffer());
      case StepKind::kRepeat:
        return def.repeat().count() == kEndless ? "" : absl::StrCat(def.repeat().count());
      case StepKind::kTake:
        return absl::StrCat(def.take().count());
      case StepKind::kSkip:
        return absl::StrCat(def.skip().count());
      case StepKind::kMap:
        return def.map().graphs(0).name();
      case StepKind::kFiles:
        return describe_files(def.files());
      case StepKind::kGenerator:
        return def.generator().name();
      case StepKind::kFilter:
        return def.filter().graphs(0).name();
      case StepKind::kPaddedBatch:
        return absl::StrCat(def.padded_batch().size());
      case StepKind::kShard:
        return absl::StrCat(def.shard().count(), ", ", def.shard().index());
      case StepKind::kZip:
      case StepKind::kConcatenate:
        return absl::StrJoin(step.others, ", ", [](std::string* out, const DatasetStepPtr& other) {
          out->append(describe_steps(*other));
        });
      case StepKind::kInterleave:
        return absl::StrCat(def.interleave().cycle());
      case StepKind::kPrefetch:
        return absl::StrCat(def.prefetch().count());
      case StepKind::kRebatch:
        if (def.rebatch().parts() > 0) return absl::StrCat(def.rebatch().parts(), " parts");
        return absl::StrJoin(def.rebatch().sizes(), ", ");
      case StepKind::kCache:
      case StepKind::KIND_NOT_SET:
        break;
    }
    return "";
  };
  return absl::StrCat(step.input ? describe_steps(*step.input) + "." : "", kind_name(step), "(",
                      arguments(), ")");
}

}  // namespace trireme::internal
