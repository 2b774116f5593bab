#include "trireme/coordinator/dynamic_account.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/data/ranges.h"
#include "trireme/exec/random.h"
#include "trireme/rpc/timer.h"

// Callbacks are run by the timer's thread: elements are returned while dispatchers hold their
// locks, and a callback may need these.
namespace trireme::internal {
namespace {

RangeSizes sizes_of(const DatasetRanges& ranges, uint64_t epochs) {
  RangeSizes sizes{
      .most_elements = [ranges](uint64_t range) { return ranges.most_elements(range); },
      .epochs = epochs == 0 ? std::numeric_limits<uint64_t>::max() : epochs};
  if (ranges.count() != kUnknownCount) sizes.ranges = ranges.count();
  return sizes;
}

}  // namespace

DynamicAccount::DynamicAccount(uint64_t resource, uint64_t seed, Dataset dataset, uint64_t epochs)
    : ElementAccount(resource),
      dataset_(std::move(dataset)),
      epochs_(epochs),
      sizes_(value_or_throw(DatasetRanges::create(Access<Dataset>::last(dataset_)))),
      edition_(new_resource_id()),
      seed_(seed),
      ranges_(sizes_of(sizes_, epochs)) {}

void DynamicAccount::release_worker(int worker) {
  MutexLock lock(mutex_);
  ranges_.release(worker);
}

std::optional<WorkerIterator> DynamicAccount::iterator(int /*worker*/) const {
  MutexLock lock(mutex_);
  return WorkerIterator{edition_, dataset_, seed_, /*in_ranges=*/true};
}

void DynamicAccount::add_editions(std::set<uint64_t>& editions) const {
  MutexLock lock(mutex_);
  editions.insert(edition_);
}

Allotment DynamicAccount::allot(int worker, uint64_t count) {
  MutexLock lock(mutex_);
  Allotment allotment{.elements = {.worker = worker, .edition = edition_}, .changes = changes_};
  AllottedElements& elements = allotment.elements;
  elements.numbers = ranges_.take(worker, count);
  allotment.left = elements.count();
  if (allotment.left == count) return allotment;
  for (const NumberSpan& span : elements.numbers) ranges_.put_back(span);
  elements.numbers.clear();
  allotment.outcome = ranges_.has_taken() ? Allotment::Outcome::kLater : Allotment::Outcome::kEnded;
  return allotment;
}

bool DynamicAccount::can_keep(const AllottedElements& elements) const {
  MutexLock lock(mutex_);
  return is_current(elements);
}

void DynamicAccount::note_used(const AllottedElements& elements) {
  Callbacks callbacks;
  {
    MutexLock lock(mutex_);
    if (!is_current(elements)) return;
    ++changes_;
    for (const NumberSpan& span : elements.numbers) ranges_.use(span);
    if (!waiting_.empty() && !ranges_.has_taken()) callbacks.swap(waiting_);
  }
  call_all(std::move(callbacks));
}

void DynamicAccount::put_back(const AllottedElements& elements) {
  if (elements.numbers.empty()) return;
  Callbacks callbacks;
  {
    MutexLock lock(mutex_);
    if (!is_current(elements)) return;
    ++changes_;
    bool some_exist = false;
    for (const NumberSpan& span : elements.numbers) some_exist |= ranges_.put_back(span);
    if (some_exist || !ranges_.has_taken()) callbacks.swap(waiting_);
  }
  call_all(std::move(callbacks));
}

bool DynamicAccount::exists(uint64_t number) const {
  if (number == kNoElement || !sizes_.are_exact()) return false;
  const RangePlace place = place_of(number);
  return place.index < sizes_.most_elements(static_cast<int64_t>(place.range));
}

bool DynamicAccount::note_end(const AllottedElements& elements, uint64_t number, bool is_beyond) {
  Callbacks callbacks;
  {
    MutexLock lock(mutex_);
    if (!is_current(elements)) return true;
    ++changes_;
    if (number != kNoElement) ranges_.note_end(number, is_beyond);
    if (!ranges_.has_taken()) callbacks.swap(waiting_);
  }
  call_all(std::move(callbacks));
  return true;
}

void DynamicAccount::on_change(uint64_t changes, std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    if (changes == changes_) {
      waiting_.push_back(std::move(callback));
      return;
    }
  }
  call_all({std::move(callback)});
}

void DynamicAccount::notify() {
  Callbacks callbacks;
  {
    MutexLock lock(mutex_);
    ++changes_;
    callbacks.swap(waiting_);
  }
  call_all(std::move(callbacks));
}

void DynamicAccount::call_all(Callbacks callbacks) {
  if (callbacks.empty()) return;
  run_at(Clock::real().now(), [callbacks = std::move(callbacks)] {
    for (const auto& callback : callbacks) callback();
  });
}

absl::StatusOr<std::vector<IteratorPosition>> DynamicAccount::positions() const {
  MutexLock lock(mutex_);
  return std::vector{ranges_.position(seed_)};
}

absl::Status DynamicAccount::restore(const std::vector<IteratorPosition>& positions) {
  if (positions.size() != 1) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("it has one position for all workers, and was given ", positions.size()),
        {"", describe()});
  }
  {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(ranges_.restore(positions[0]));
    seed_ = positions[0].seed;
    edition_ = new_resource_id();
  }
  notify();
  return absl::OkStatus();
}

std::string DynamicAccount::describe() const {
  return absl::StrCat(dataset_.describe(), " in dynamic shards");
}

std::shared_ptr<ElementAccount> DynamicAccount::begin_again() const {
  MutexLock lock(mutex_);
  return std::make_shared<DynamicAccount>(resource(), step_seed(seed_, 1), dataset_, epochs_);
}

}  // namespace trireme::internal
