#include "trireme/data/input_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/data/dataset_steps.h"

namespace trireme::internal {
namespace {

// A server keeps its counters for ever, and names come from peers.
constexpr size_t kMostPipelines = 100;
constexpr size_t kLongestName = 200;

std::string pipeline_name(const Metrics& metrics, const DatasetStep& last) {
  std::string name = describe_steps(last);
  if (name.size() > kLongestName) {
    // Not in the middle of a character: protobuf rejects messages with such names.
    size_t end = kLongestName;
    while (end > 0 && (static_cast<uint8_t>(name[end]) & 0xc0) == 0x80) --end;
    name.resize(end);
  }
  for (char& letter : name) {
    if (letter == '/') letter = '|';  // separates the parts of a counter's name
  }
  size_t pipelines = 0;
  for (const auto& [counter, value] : metrics.counters()) {
    if (!counter.starts_with("input/") || !counter.ends_with("/elements")) continue;
    if (counter == absl::StrCat("input/", name, "/elements")) return name;
    ++pipelines;
  }
  return pipelines < kMostPipelines ? name : "others";
}

}  // namespace

InputMetrics::InputMetrics(Metrics& metrics, const DatasetStep& last) {
  const std::string prefix = absl::StrCat("input/", pipeline_name(metrics, last), "/");
  elements_ = &metrics.counter(prefix + "elements");
  wait_us_ = &metrics.counter(prefix + "wait_us");
  bad_records_ = &metrics.counter(prefix + "bad_records");
  for (const DatasetStep* step = &last; step != nullptr; step = step->input.get()) {
    times_.push_back(nullptr);
    if (step->items != Items::kElements) continue;
    times_.back() =
        &metrics.counter(absl::StrFormat("%s%02d %s/us", prefix, step->number, kind_name(*step)));
    by_step_[step] = times_.back();
  }
}

std::shared_ptr<InputMetrics> InputMetrics::for_part(const DatasetStep& last) const {
  std::shared_ptr<InputMetrics> part(new InputMetrics());
  part->elements_ = elements_;
  part->wait_us_ = wait_us_;
  part->bad_records_ = bad_records_;
  part->times_ = times_;
  auto time = times_.begin();
  for (const DatasetStep* step = &last; step != nullptr && time != times_.end();
       step = step->input.get(), ++time) {
    if (step->items == Items::kElements) part->by_step_[step] = *time;
  }
  return part;
}

Counter* InputMetrics::time_of(const DatasetStep& step) const {
  const auto found = by_step_.find(&step);
  return found == by_step_.end() ? nullptr : found->second;
}

}  // namespace trireme::internal
