#include "trireme/coordinator/worker_resource.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/coordinator/dynamic_account.h"
#include "trireme/coordinator/per_worker_account.h"
#include "trireme/data/example_element.h"

namespace trireme::internal {

WorkerResource::WorkerResource(uint64_t seed, DatasetFunction function, bool is_constant)
    : id_(new_resource_id()),
      function_(std::move(function)),
      account_(std::make_shared<PerWorkerAccount>(id_, seed, is_constant)) {}

WorkerResource::WorkerResource(uint64_t seed, const Dataset& dataset, uint64_t epochs)
    : id_(new_resource_id()),
      function_([dataset](const InputContext&) { return dataset; }),
      account_(std::make_shared<DynamicAccount>(id_, seed, dataset, epochs)) {
  const SuspendDeviceCheck own;
  example_ = zeros(dataset.element_spec());
}

std::shared_ptr<ElementAccount> WorkerResource::account() const {
  MutexLock lock(mutex_);
  return account_;
}

void WorkerResource::restart() {
  MutexLock lock(mutex_);
  std::erase_if(earlier_, [](const auto& account) { return account.expired(); });
  earlier_.push_back(account_);
  account_ = account_->begin_again();
}

std::vector<std::shared_ptr<ElementAccount>> WorkerResource::accounts() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<ElementAccount>> accounts = {account_};
  for (const auto& account : earlier_) {
    if (auto held = account.lock()) accounts.push_back(std::move(held));
  }
  return accounts;
}

void WorkerResource::set_dataset(int worker, int pipeline, const Dataset& dataset) {
  {
    const SuspendDeviceCheck own;
    MutexLock lock(mutex_);
    if (example_.empty()) example_ = zeros(dataset.element_spec());
  }
  for (const auto& account : accounts()) account->set_dataset(worker, pipeline, dataset);
}

void WorkerResource::forget_worker(int worker) {
  for (const auto& account : accounts()) account->forget_worker(worker);
}

void WorkerResource::release_worker(int worker) {
  for (const auto& account : accounts()) account->release_worker(worker);
}

void WorkerResource::notify() {
  for (const auto& account : accounts()) account->notify();
}

void WorkerResource::add_editions(std::set<uint64_t>& editions) const {
  for (const auto& account : accounts()) account->add_editions(editions);
}

absl::StatusOr<std::vector<IteratorPosition>> WorkerResource::positions() const {
  const auto held = accounts();
  if (held.size() > 1) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "closures that were scheduled before restart() are not done; call join() "
                       "after restart() before you save",
                       {"", absl::StrCat("per-worker dataset ", held[0]->describe())});
  }
  return held[0]->positions();
}

absl::Status WorkerResource::restore(const std::vector<IteratorPosition>& positions) {
  return account()->restore(positions);
}

Element WorkerResource::example() const {
  MutexLock lock(mutex_);
  return example_;
}

}  // namespace trireme::internal
