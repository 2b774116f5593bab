#include "trireme/coordinator/worker_resource.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/example_element.h"
#include "trireme/exec/random.h"

// The workers change in two steps. prepare_workers() calls the user's functions, which may throw,
// and stores their datasets only when all of them have returned. set_workers() then makes the
// change, and cannot fail. make() may run between the two on another thread, so it repeats until it
// has made a dataset for every current worker.
namespace trireme::internal {
namespace {

// Ids are unique within the process, so a resource of another coordinator is never mistaken for one
// of this coordinator.
uint64_t next_resource_id() {
  static std::atomic<uint64_t> next = 1;
  return next++;
}

}  // namespace

WorkerResource::WorkerResource(uint64_t seed, DatasetFunction function, bool is_constant)
    : id_(next_resource_id()),
      seed_(seed),
      function_(std::move(function)),
      is_constant_(is_constant) {}

// Two workers may have been given the same number of a pipeline, if workers were added or removed
// meanwhile. They must not draw in the same order.
void WorkerResource::set_dataset(int worker, int pipeline, Dataset dataset) {
  const SuspendDeviceCheck own;
  MutexLock lock(mutex_);
  if (example_.empty()) example_ = zeros(dataset.element_spec());
  uint64_t seed = step_seed(seed_, pipeline);
  const auto has_seed = [&](const auto& other) {
    return other.first != worker && other.second.iterator.seed == seed;
  };
  while (std::ranges::any_of(accounts_, has_seed)) seed = step_seed(seed, pipeline);
  accounts_.insert_or_assign(worker,
                             Account{{next_resource_id(), std::move(dataset), seed}, {}, {}});
}

uint64_t WorkerResource::edition(int worker) const {
  MutexLock lock(mutex_);
  const auto found = accounts_.find(worker);
  return found == accounts_.end() ? 0 : found->second.iterator.edition;
}

void WorkerResource::add_editions(std::set<uint64_t>& editions) const {
  MutexLock lock(mutex_);
  for (const auto& [worker, account] : accounts_) editions.insert(account.iterator.edition);
}

bool WorkerResource::has_dataset(int worker) const {
  MutexLock lock(mutex_);
  return accounts_.contains(worker);
}

void WorkerResource::forget_worker(int worker) {
  MutexLock lock(mutex_);
  accounts_.erase(worker);
}

std::optional<WorkerIterator> WorkerResource::iterator(int worker) const {
  MutexLock lock(mutex_);
  const auto found = accounts_.find(worker);
  if (found == accounts_.end()) return std::nullopt;
  return found->second.iterator;
}

AllottedElements WorkerResource::allot(int worker, uint64_t count) {
  AllottedElements allotted{.worker = worker};
  MutexLock lock(mutex_);
  const auto found = accounts_.find(worker);
  if (found == accounts_.end()) return allotted;
  Account& account = found->second;
  allotted.edition = account.iterator.edition;
  if (is_constant_) {
    allotted.numbers.push_back({0, count});
    return allotted;
  }
  while (count > 0) {
    const NumberSpan next = account.taken.first_gap(count);
    account.taken.use(next);
    allotted.numbers.push_back(next);
    count -= next.count;
  }
  return allotted;
}

WorkerResource::Account* WorkerResource::account_of(const AllottedElements& elements) {
  const auto found = accounts_.find(elements.worker);
  const bool is_current =
      found != accounts_.end() && found->second.iterator.edition == elements.edition;
  return is_current && !is_constant_ ? &found->second : nullptr;
}

bool WorkerResource::can_keep(const AllottedElements& elements) const {
  MutexLock lock(mutex_);
  return const_cast<WorkerResource*>(this)->account_of(elements) != nullptr;
}

void WorkerResource::note_used(const AllottedElements& elements) {
  MutexLock lock(mutex_);
  Account* const account = account_of(elements);
  if (account == nullptr) return;
  for (const NumberSpan& span : elements.numbers) account->used.use(span);
}

void WorkerResource::put_back(const AllottedElements& elements) {
  MutexLock lock(mutex_);
  Account* const account = account_of(elements);
  if (account == nullptr) return;
  for (const NumberSpan& span : elements.numbers) account->taken.put_back(span);
}

absl::StatusOr<std::vector<IteratorPosition>> WorkerResource::positions() const {
  std::vector<IteratorPosition> positions;
  MutexLock lock(mutex_);
  for (const auto& [worker, account] : accounts_) {
    TRIREME_ASSIGN_OR_RETURN(positions.emplace_back(),
                             account.used.position(account.iterator.seed));
  }
  return positions;
}

absl::Status WorkerResource::restore(const std::vector<IteratorPosition>& positions) {
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
    account.iterator.edition = next_resource_id();
    account.used = same_workers ? std::move(used[i]) : UsedNumbers();
    account.taken = account.used;
    if (same_workers) account.iterator.seed = positions[i].seed;
    ++i;
  }
  return absl::OkStatus();
}

std::string WorkerResource::describe() const {
  MutexLock lock(mutex_);
  return describe_locked();
}

std::string WorkerResource::describe_locked() const {
  return accounts_.empty() ? "" : accounts_.begin()->second.iterator.dataset.describe();
}

Element WorkerResource::example() const {
  MutexLock lock(mutex_);
  return example_;
}

std::shared_ptr<WorkerResource> WorkerResources::make(WorkerResource::DatasetFunction function,
                                                      bool is_constant) {
  std::shared_ptr<WorkerResource> resource;
  std::set<int> made_for, workers;
  {
    MutexLock lock(mutex_);
    resource = std::make_shared<WorkerResource>(step_seed(current_seed(), made_++),
                                                std::move(function), is_constant);
    std::erase_if(resources_, [](const auto& known) { return known.second.expired(); });
    resources_[resource->id()] = resource;
    workers = workers_;
  }
  // The user's function runs without the lock, so the workers may change meanwhile.
  while (made_for != workers) {
    for (int worker : workers) {
      if (made_for.contains(worker)) continue;
      const InputContext context = context_of(worker, workers);
      resource->set_dataset(worker, context.input_pipeline_id, resource->make_dataset(context));
    }
    made_for = workers;
    MutexLock lock(mutex_);
    workers = workers_;
  }
  return resource;
}

void WorkerResources::prepare_workers(const std::set<int>& workers) {
  std::vector<std::shared_ptr<WorkerResource>> resources;
  {
    MutexLock lock(mutex_);
    resources = held();
  }
  std::vector<std::tuple<std::shared_ptr<WorkerResource>, int, int, Dataset>> made;
  for (const auto& resource : resources) {
    for (int worker : workers) {
      if (resource->has_dataset(worker)) continue;
      const InputContext context = context_of(worker, workers);
      made.emplace_back(resource, worker, context.input_pipeline_id,
                        resource->make_dataset(context));
    }
  }
  for (auto& [resource, worker, pipeline, dataset] : made) {
    resource->set_dataset(worker, pipeline, std::move(dataset));
  }
}

void WorkerResources::set_workers(const std::set<int>& workers) {
  MutexLock lock(mutex_);
  for (int worker : workers_) {
    if (workers.contains(worker)) continue;
    for (const auto& resource : held()) resource->forget_worker(worker);
  }
  workers_ = workers;
}

InputContext WorkerResources::context_of(int worker, const std::set<int>& workers) const {
  const auto place = std::distance(workers.begin(), workers.find(worker));
  return {.num_input_pipelines = static_cast<int>(workers.size()),
          .input_pipeline_id = static_cast<int>(place),
          .num_replicas_in_sync = replicas_};
}

std::vector<std::shared_ptr<WorkerResource>> WorkerResources::held() const {
  std::vector<std::shared_ptr<WorkerResource>> resources;
  for (const auto& [id, resource] : resources_) {
    if (auto held = resource.lock()) resources.push_back(std::move(held));
  }
  return resources;
}

bool WorkerResources::has(uint64_t resource) const {
  MutexLock lock(mutex_);
  return resources_.contains(resource);
}

std::vector<uint64_t> WorkerResources::unused(const std::set<uint64_t>& editions) const {
  // Destroyed after the lock is released.
  std::vector<std::shared_ptr<WorkerResource>> resources;
  MutexLock lock(mutex_);
  resources = held();
  std::set<uint64_t> used;
  for (const auto& resource : resources) resource->add_editions(used);
  std::vector<uint64_t> unused;
  std::ranges::set_difference(editions, used, std::back_inserter(unused));
  return unused;
}

}  // namespace trireme::internal
