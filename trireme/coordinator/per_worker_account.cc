#include "trireme/coordinator/per_worker_account.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/exec/random.h"

namespace trireme::internal {

// Two workers may have been given the same number of a pipeline, if workers were added or removed
// meanwhile. They must not draw in the same order.
void PerWorkerAccount::set_dataset(int worker, int pipeline, Dataset dataset) {
  MutexLock lock(mutex_);
  uint64_t seed = step_seed(seed_, pipeline);
  const auto has_seed = [&](const auto& other) {
    return other.first != worker && other.second.iterator.seed == seed;
  };
  while (std::ranges::any_of(accounts_, has_seed)) seed = step_seed(seed, pipeline);
  accounts_.insert_or_assign(worker,
                             Account{{new_resource_id(), std::move(dataset), seed}, {}, {}, false});
}

void PerWorkerAccount::add_editions(std::set<uint64_t>& editions) const {
  MutexLock lock(mutex_);
  for (const auto& [worker, account] : accounts_) editions.insert(account.iterator.edition);
}

bool PerWorkerAccount::has_dataset(int worker) const {
  MutexLock lock(mutex_);
  return accounts_.contains(worker);
}

void PerWorkerAccount::forget_worker(int worker) {
  MutexLock lock(mutex_);
  accounts_.erase(worker);
}

std::optional<WorkerIterator> PerWorkerAccount::iterator(int worker) const {
  MutexLock lock(mutex_);
  const auto found = accounts_.find(worker);
  if (found == accounts_.end()) return std::nullopt;
  return found->second.iterator;
}

Allotment PerWorkerAccount::allot(int worker, uint64_t count) {
  Allotment allotment{.elements = {.worker = worker}};
  AllottedElements& allotted = allotment.elements;
  MutexLock lock(mutex_);
  const auto found = accounts_.find(worker);
  if (found == accounts_.end()) return allotment;
  Account& account = found->second;
  allotted.edition = account.iterator.edition;
  if (is_constant_) {
    allotted.numbers.push_back({0, count});
    return allotment;
  }
  while (count > 0) {
    const NumberSpan next = account.taken.first_gap(count);
    account.taken.use(next);
    allotted.numbers.push_back(next);
    count -= next.count;
  }
  return allotment;
}

PerWorkerAccount::Account* PerWorkerAccount::account_of(const AllottedElements& elements) {
  const auto found = accounts_.find(elements.worker);
  const bool is_current =
      found != accounts_.end() && found->second.iterator.edition == elements.edition;
  return is_current && !is_constant_ ? &found->second : nullptr;
}

bool PerWorkerAccount::can_keep(const AllottedElements& elements) const {
  MutexLock lock(mutex_);
  return const_cast<PerWorkerAccount*>(this)->account_of(elements) != nullptr;
}

void PerWorkerAccount::note_used(const AllottedElements& elements) {
  MutexLock lock(mutex_);
  Account* const account = account_of(elements);
  if (account == nullptr) return;
  for (const NumberSpan& span : elements.numbers) account->used.use(span);
}

void PerWorkerAccount::put_back(const AllottedElements& elements) {
  MutexLock lock(mutex_);
  Account* const account = account_of(elements);
  if (account == nullptr) return;
  for (const NumberSpan& span : elements.numbers) account->taken.put_back(span);
}

bool PerWorkerAccount::note_end(const AllottedElements& elements, uint64_t /*number*/,
                                bool /*is_beyond*/) {
  MutexLock lock(mutex_);
  Account* const account = account_of(elements);
  if (account != nullptr) account->has_ended = true;
  return std::ranges::any_of(accounts_, [](const auto& each) { return !each.second.has_ended; });
}

absl::StatusOr<std::vector<IteratorPosition>> PerWorkerAccount::positions() const {
  std::vector<IteratorPosition> positions;
  MutexLock lock(mutex_);
  for (const auto& [worker, account] : accounts_) {
    TRIREME_ASSIGN_OR_RETURN(positions.emplace_back(),
                             account.used.position(account.iterator.seed));
  }
  return positions;
}

absl::Status PerWorkerAccount::restore(const std::vector<IteratorPosition>& positions) {
  std::vector<UsedNumbers> used;
  for (const IteratorPosition& position : positions) {
    TRIREME_ASSIGN_OR_RETURN(used.emplace_back(), UsedNumbers::create(position));
  }
  const bool at_start =
      std::ranges::all_of(used, [](const auto& each) { return each.next() == 0; });
  MutexLock lock(mutex_);
  const bool same_workers = positions.size() == accounts_.size();
  if (!same_workers && !at_start) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("its position was saved with ", positions.size(), " workers, and there are ",
                     accounts_.size(), " now; continue with as many workers as before"),
        {"", absl::StrCat("per-worker dataset ", describe_locked())});
  }
  for (size_t i = 0; auto& [worker, account] : accounts_) {
    if (same_workers) {
      TRIREME_RETURN_IF_ERROR(
          check_skip(*Access<Dataset>::last(account.iterator.dataset), used[i++].next()));
    }
  }
  for (size_t i = 0; auto& [worker, account] : accounts_) {
    account.iterator.edition = new_resource_id();
    account.has_ended = false;
    account.used = same_workers ? std::move(used[i]) : UsedNumbers();
    account.taken = account.used;
    if (same_workers) account.iterator.seed = positions[i].seed;
    ++i;
  }
  return absl::OkStatus();
}

std::string PerWorkerAccount::describe() const {
  MutexLock lock(mutex_);
  return describe_locked();
}

std::string PerWorkerAccount::describe_locked() const {
  return accounts_.empty() ? "" : accounts_.begin()->second.iterator.dataset.describe();
}

std::shared_ptr<ElementAccount> PerWorkerAccount::begin_again() const {
  auto next = std::make_shared<PerWorkerAccount>(resource(), step_seed(seed_, 1), is_constant_);
  MutexLock lock(mutex_), next_lock(next->mutex_);
  for (const auto& [worker, account] : accounts_) {
    const WorkerIterator& iterator = account.iterator;
    next->accounts_.emplace(
        worker,
        Account{{new_resource_id(), iterator.dataset, step_seed(iterator.seed, 1)}, {}, {}});
  }
  return next;
}

}  // namespace trireme::internal
