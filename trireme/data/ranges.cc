#include "trireme/data/ranges.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/graph/graph_file.h"

// All ranges of a source whose number of elements is known are equally long. A file whose number of
// records is not known can only be read from its beginning, so a range costs as much as all ranges
// before it. There the length doubles every 16 ranges. Then reading all ranges costs about as much
// as reading the file 24 times without decoding it, however long it is, and the longest range is at
// most a sixteenth of the file.
namespace trireme::internal {
namespace {

constexpr int kIndexBits = 30;
constexpr int kRangeBits = 17;

constexpr int64_t kLeastRows = 256;          // of a range
constexpr int64_t kLeastBatches = 8;         // of a range
constexpr int64_t kLeastRecords = 4096;      // of a range of a file whose length is not known
constexpr int64_t kMostFirstRows = 1 << 30;  // of the first range
constexpr int64_t kRangesOfALength = 16;     // in a file whose length is not known
constexpr int64_t kMostDoublings = 12;
// Ranges that a source should have at least, even if shuffles have larger buffers.
constexpr int64_t kFairRanges = 32;

int64_t rows_of_batch(const proto::DatasetStep& def) {
  if (def.has_batch()) return def.batch().size();
  return def.has_padded_batch() ? def.padded_batch().size() : 1;
}

std::string kind_of_step(const proto::DatasetStep& def) {
  const auto* kind = proto::DatasetStep::descriptor()->FindOneofByName("kind");
  const auto* field = def.GetReflection()->GetOneofFieldDescriptor(def, kind);
  return field == nullptr ? "unknown" : std::string(field->name());
}

absl::Status check_cuttable(const DatasetStep& step) {
  const proto::DatasetStep& def = step.def;
  if (step.input == nullptr
          ? def.has_range() || def.has_tensors() || def.has_files()
          : def.has_batch() || def.has_padded_batch() || def.has_shuffle() || def.has_map() ||
                def.has_filter() || def.has_interleave() || def.has_prefetch()) {
    return absl::OkStatus();
  }
  const std::string name = kind_of_step(def);
  const char* const remedy =
      def.has_repeat() ? "remove it, and set the number of epochs in the options of the dataset"
                       : "remove it, or choose another way to divide the dataset";
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("Shard::kDynamic cuts the dataset into ranges, and ", name,
                                  "() cannot run inside of one; ", remedy),
                     {"", absl::StrCat("dataset step ", step.number, " '", name, "'")});
}

// Returns a map or filter with the graphs for the elements that `input` gives. Ranges may lack a
// shape that the dataset has: that of its last batch.
absl::StatusOr<DatasetStepPtr> add_graphs_of(DatasetStepPtr input, const DatasetStep& step) {
  proto::DatasetStep def = step.def;
  auto& graphs = def.has_map() ? *def.mutable_map()->mutable_graphs()
                               : *def.mutable_filter()->mutable_graphs();
  const auto all = graphs;
  graphs.Clear();
  std::vector<at::Tensor> constants;
  for (const ElementSpec& spec : input->specs) {
    const auto found = std::ranges::find(step.input->specs, spec);
    if (found == step.input->specs.end()) {
      return make_status(ErrorCode::kInternal,
                         absl::StrCat("a range has elements ", to_string(spec),
                                      " that the dataset does not have"));
    }
    const auto i = static_cast<int>(found - step.input->specs.begin());
    *graphs.Add() = all[i];
    for (at::Tensor& row : constant_rows(*step.plans[i]->graph)) {
      constants.push_back(std::move(row));
    }
  }
  return add_step(std::move(input), std::move(def), std::move(constants));
}

}  // namespace

uint64_t number_of(const RangePlace& place) {
  // The place behind the last range of an epoch is the first one of the next.
  return ((place.epoch << kRangeBits) + place.range) << kIndexBits | place.index;
}

RangePlace place_of(uint64_t number) {
  const uint64_t range = number >> kIndexBits;
  return {
      .epoch = range >> kRangeBits, .range = range % kMostRanges, .index = number % kMostInRange};
}

absl::StatusOr<DatasetRanges> DatasetRanges::create(DatasetStepPtr step) {
  DatasetRanges ranges;
  int64_t batch = 1, buffer = 1;  // in elements of the source
  for (; step->input != nullptr; step = step->input) {
    TRIREME_RETURN_IF_ERROR(check_cuttable(*step));
    ranges.steps_.push_back(step);
  }
  TRIREME_RETURN_IF_ERROR(check_cuttable(*step));
  std::ranges::reverse(ranges.steps_);
  ranges.source_ = std::move(step);
  for (const DatasetStepPtr& each : ranges.steps_) {
    batch = std::min(batch * std::min(rows_of_batch(each->def), kMostFirstRows), kMostFirstRows);
    if (!each->def.has_shuffle()) continue;
    buffer = std::max(buffer, batch * std::min(each->def.shuffle().buffer(), kMostFirstRows));
  }
  const int64_t count = ranges.source_->count;
  const bool is_known = count != kUnknownCount;
  // A shuffle should not be cut short, but all workers should have something to do.
  int64_t least = is_known ? std::max(kLeastRows, std::min(buffer, count / kFairRanges))
                           : std::max(kLeastRecords, kLeastRows);
  if (is_known) least = std::max<int64_t>(least, count / static_cast<int64_t>(kMostRanges / 2));
  // Whole batches, so that only the last range can have a smaller one.
  ranges.rows_ = batch * std::max(kLeastBatches, (least + batch - 1) / batch);
  if (!is_known) ranges.rows_ = std::min(ranges.rows_, kMostFirstRows);
  if (ranges.by_files() && ranges.count() > static_cast<int64_t>(kMostRanges)) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("it has ", ranges.count(), " files; Shard::kDynamic takes at ",
                                    "most ", kMostRanges),
                       {"", absl::StrCat("dataset ", describe_steps(*ranges.source_))});
  }
  return ranges;
}

int64_t DatasetRanges::count() const {
  if (by_files()) return source_->def.files().names_size();
  if (source_->count == kUnknownCount) return kUnknownCount;
  return source_->count / rows_ + (source_->count % rows_ == 0 ? 0 : 1);
}

bool DatasetRanges::are_exact() const {
  const auto keeps_count = [](const DatasetStepPtr& step) {
    return !step->def.has_filter() && !step->def.has_interleave();
  };
  return !source_->def.has_files() && std::ranges::all_of(steps_, keeps_count);
}

int64_t DatasetRanges::rows(int64_t range) const {
  if (source_->count != kUnknownCount) {
    return std::clamp<int64_t>(source_->count - begin(range), 0, rows_);
  }
  return rows_ << std::min(range / kRangesOfALength, kMostDoublings);
}

int64_t DatasetRanges::begin(int64_t range) const {
  if (source_->count != kUnknownCount) return range * rows_;
  const int64_t doublings = std::min(range / kRangesOfALength, kMostDoublings);
  const int64_t before = rows_ * kRangesOfALength * ((int64_t{1} << doublings) - 1);
  return before + (range - kRangesOfALength * doublings) * (rows_ << doublings);
}

uint64_t DatasetRanges::most_elements(int64_t range) const {
  if (by_files()) return kMostInRange;
  int64_t elements = rows(range);
  for (const DatasetStepPtr& step : steps_) {
    const int64_t size = rows_of_batch(step->def);
    const bool drops =
        step->def.batch().drop_remainder() || step->def.padded_batch().drop_remainder();
    elements = elements / size + (drops || elements % size == 0 ? 0 : 1);
  }
  return std::min<uint64_t>(elements, kMostInRange);
}

absl::StatusOr<DatasetStepPtr> DatasetRanges::source_of(int64_t range) const {
  proto::DatasetStep def = source_->def;
  if (by_files()) {
    def.mutable_files()->clear_names();
    def.mutable_files()->add_names(source_->def.files().names(static_cast<int>(range)));
    return add_step(nullptr, std::move(def), {});
  }
  proto::DatasetStep skip, take;
  skip.mutable_skip()->set_count(begin(range));
  take.mutable_take()->set_count(rows(range));
  TRIREME_ASSIGN_OR_RETURN(DatasetStepPtr rest, add_step(source_, std::move(skip), {}));
  return add_step(std::move(rest), std::move(take), {});
}

absl::StatusOr<DatasetStepPtr> DatasetRanges::range(int64_t range) const {
  TRIREME_ASSIGN_OR_RETURN(DatasetStepPtr last, source_of(range));
  for (const DatasetStepPtr& step : steps_) {
    if (step->def.has_interleave()) continue;  // a range has one file
    if (step->def.has_map() || step->def.has_filter()) {
      TRIREME_ASSIGN_OR_RETURN(last, add_graphs_of(std::move(last), *step));
    } else {
      TRIREME_ASSIGN_OR_RETURN(last, add_step(std::move(last), step->def, {}));
    }
  }
  return last;
}

}  // namespace trireme::internal
