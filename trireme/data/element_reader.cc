#include "trireme/data/element_reader.h"

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/data/open_stream.h"

// A stream goes forward only, and going back means to open another one, which shuffles the current
// repetition from its beginning. Callers that run at the same time ask for numbers in slightly
// different order, so a stream that has to pass over a few elements makes and keeps them. Callers
// that are far apart get streams of their own.
namespace trireme::internal {
namespace {

constexpr uint64_t kClose = 64;    // elements that a stream makes in advance at most
constexpr size_t kMostKept = 256;  // elements that are kept at most
constexpr size_t kMostStreams = 4;

}  // namespace

ElementReader::ElementReader(DatasetStepPtr step, uint64_t seed,
                             std::shared_ptr<InputMetrics> metrics)
    : step_(std::move(step)),
      seed_(seed),
      metrics_(std::move(metrics)),
      name_(absl::StrCat("iterator over ", describe_steps(*step_))) {}

Element ElementReader::take(uint64_t number) {
  const SuspendDeviceCheck own;
  const Time begin = Clock::real().now();
  MutexLock lock(mutex_);
  Element element = take_locked(number);
  if (metrics_ != nullptr) {
    const auto waited = Clock::real().now() - begin;
    metrics_->add_element(std::chrono::duration_cast<std::chrono::microseconds>(waited).count());
  }
  return element;
}

Element ElementReader::take_locked(uint64_t number) {
  if (auto kept = kept_.extract(number)) return std::move(kept.mapped());
  if (!move_close_to(number)) {
    throw_if_error(with_origin(check_skip(*step_, number), {"", name_}));
    if (streams_.size() >= kMostStreams) streams_.pop_back();
    streams_.push_front({open_stream(step_, seed_, metrics_), 0});
  }
  return make(number);
}

void ElementReader::put_back(uint64_t number, Element element) {
  MutexLock lock(mutex_);
  keep(number, std::move(element));
}

// Small numbers are dropped first, since nobody may ever ask for them.
void ElementReader::keep(uint64_t number, Element element) {
  if (kept_.size() >= kMostKept) kept_.erase(kept_.begin());
  kept_.insert_or_assign(number, std::move(element));
}

bool ElementReader::move_close_to(uint64_t number) {
  auto best = streams_.end();
  for (auto each = streams_.begin(); each != streams_.end(); ++each) {
    if (each->next > number || number - each->next > kClose) continue;
    if (best == streams_.end() || each->next > best->next) best = each;
  }
  if (best == streams_.end()) return false;
  streams_.splice(streams_.begin(), streams_, best);
  try {
    for (uint64_t passed = best->next; passed < number; ++passed) keep(passed, make(passed));
  } catch (const Error&) {
    return false;  // the caller that takes that element gets the error
  }
  return true;
}

// Errors of LibTorch and of steps get the name of the iterator. The steps may have lost some of
// their input in an error, so the stream is not used any more.
Element ElementReader::make(uint64_t number) {
  Opened& opened = streams_.front();
  absl::StatusOr<std::optional<Element>> element = try_call([&]() -> std::optional<Element> {
    if (opened.next < number) {
      opened.next +=
          value_or_throw(opened.stream->skip(static_cast<int64_t>(number - opened.next)));
      if (opened.next < number) return std::nullopt;
    }
    std::optional<Element> made = value_or_throw(opened.stream->next());
    if (made) ++opened.next;
    return made;
  });
  if (!element.ok()) {
    streams_.pop_front();
    throw to_error(with_origin(element.status(), {"", name_}));
  }
  if (element->has_value()) return **std::move(element);
  throw Error(ErrorCode::kEndOfData,
              "there are no more elements; add repeat() to the dataset to start over", {"", name_});
}

}  // namespace trireme::internal
