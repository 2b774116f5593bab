#include "trireme/coordinator/worker_resources.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "trireme/exec/random.h"

// The workers change in two steps. prepare_workers() calls the user's functions, which may throw,
// and stores their datasets only when all of them have returned. set_workers() then makes the
// change, and cannot fail. make() may run between the two on another thread, so it repeats until it
// has made a dataset for every current worker.
namespace trireme::internal {

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

std::shared_ptr<WorkerResource> WorkerResources::make_shared(const Dataset& dataset,
                                                             uint64_t epochs) {
  MutexLock lock(mutex_);
  auto resource =
      std::make_shared<WorkerResource>(step_seed(current_seed(), made_++), dataset, epochs);
  resources_[resource->id()] = resource;
  return resource;
}

void WorkerResources::prepare_workers(const std::set<int>& workers) {
  const std::vector<std::shared_ptr<WorkerResource>> resources = all();
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
    resource->set_dataset(worker, pipeline, dataset);
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

void WorkerResources::release_worker(int worker) const {
  for (const auto& resource : all()) resource->release_worker(worker);
}

void WorkerResources::notify() const {
  for (const auto& resource : all()) resource->notify();
}

std::vector<std::shared_ptr<WorkerResource>> WorkerResources::all() const {
  MutexLock lock(mutex_);
  return held();
}

InputContext WorkerResources::context_of(int worker, const std::set<int>& workers) const {
  const auto place = std::distance(workers.begin(), workers.find(worker));
  return {.num_input_pipelines = static_cast<int>(workers.size()),
          .input_pipeline_id = static_cast<int>(place),
          .num_replicas_in_sync = replicas_()};
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
