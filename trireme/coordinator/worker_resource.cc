#include "trireme/coordinator/worker_resource.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "trireme/capture/device_request.h"
#include "trireme/data/example_element.h"

// The workers change in two steps. prepare_workers() calls the user's functions, which may throw,
// and stores their datasets only when all of them have returned. set_workers() then makes the
// change, and cannot fail. make() may run between the two on another thread, so it repeats until it
// has made a dataset for every current worker.
namespace trireme::internal {

void WorkerResource::set_dataset(int worker, Dataset dataset) {
  const SuspendDeviceCheck own;
  MutexLock lock(mutex_);
  if (example_.empty()) example_ = zeros(dataset.element_spec());
  datasets_.insert_or_assign(worker, std::move(dataset));
}

void WorkerResource::forget_worker(int worker) {
  MutexLock lock(mutex_);
  datasets_.erase(worker);
}

std::optional<Dataset> WorkerResource::dataset(int worker) const {
  MutexLock lock(mutex_);
  const auto found = datasets_.find(worker);
  if (found == datasets_.end()) return std::nullopt;
  return found->second;
}

Element WorkerResource::example() const {
  MutexLock lock(mutex_);
  return example_;
}

std::shared_ptr<WorkerResource> WorkerResources::make(WorkerResource::DatasetFunction function) {
  // Ids are unique within the process, so a resource of another coordinator is never mistaken for
  // one of this coordinator.
  static std::atomic<uint64_t> next_id = 1;
  const auto resource = std::make_shared<WorkerResource>(next_id++, std::move(function));
  std::set<int> made_for, workers;
  {
    MutexLock lock(mutex_);
    std::erase_if(resources_, [](const auto& known) { return known.second.expired(); });
    resources_[resource->id()] = resource;
    workers = workers_;
  }
  // The user's function runs without the lock, so the workers may change meanwhile.
  while (made_for != workers) {
    for (int worker : workers) {
      if (made_for.contains(worker)) continue;
      resource->set_dataset(worker, resource->make_dataset(context_of(worker, workers)));
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
  std::vector<std::tuple<std::shared_ptr<WorkerResource>, int, Dataset>> made;
  for (const auto& resource : resources) {
    for (int worker : workers) {
      if (resource->dataset(worker)) continue;
      made.emplace_back(resource, worker, resource->make_dataset(context_of(worker, workers)));
    }
  }
  for (auto& [resource, worker, dataset] : made) resource->set_dataset(worker, std::move(dataset));
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

std::vector<uint64_t> WorkerResources::unused(const std::set<uint64_t>& resources) const {
  std::vector<uint64_t> unused;
  MutexLock lock(mutex_);
  for (uint64_t id : resources) {
    const auto found = resources_.find(id);
    if (found == resources_.end() || found->second.expired()) unused.push_back(id);
  }
  return unused;
}

}  // namespace trireme::internal
