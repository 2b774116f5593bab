#include "trireme/coordinator/worker_resource.h"

#include <algorithm>
#include <utility>

#include "trireme/graph/device_scope.h"

namespace trireme::internal {

void WorkerResource::add_worker(int worker, const InputContext& context) {
  Dataset dataset = function_(context);
  const OwnWork own;
  MutexLock lock(mutex_);
  if (datasets_.empty()) example_ = zeros(dataset.element_spec());
  datasets_.insert_or_assign(worker, std::move(dataset));
}

Dataset WorkerResource::dataset(int worker) const {
  MutexLock lock(mutex_);
  return datasets_.at(worker);
}

Element WorkerResource::example() const {
  MutexLock lock(mutex_);
  return example_;
}

std::shared_ptr<WorkerResource> WorkerResources::make(WorkerResource::DatasetFunction function) {
  std::shared_ptr<WorkerResource> resource;
  std::map<int, InputContext> contexts;
  {
    MutexLock lock(mutex_);
    std::erase_if(resources_, [](const auto& known) { return known.second.expired(); });
    resource = std::make_shared<WorkerResource>(next_id_++, std::move(function));
    // Before its datasets are there: a worker that comes meanwhile is not forgotten.
    resources_[resource->id()] = resource;
    for (int worker : workers_) contexts[worker] = context_of(worker);
  }
  for (const auto& [worker, context] : contexts) resource->add_worker(worker, context);
  return resource;
}

void WorkerResources::add_worker(int worker) {
  std::vector<std::shared_ptr<WorkerResource>> resources;
  InputContext context;
  {
    MutexLock lock(mutex_);
    workers_.insert(worker);
    context = context_of(worker);
    for (const auto& [id, resource] : resources_) {
      if (auto held = resource.lock()) resources.push_back(std::move(held));
    }
  }
  for (const auto& resource : resources) resource->add_worker(worker, context);
}

void WorkerResources::remove_worker(int worker) {
  MutexLock lock(mutex_);
  workers_.erase(worker);
}

InputContext WorkerResources::context_of(int worker) const {
  const auto place = std::distance(workers_.begin(), workers_.find(worker));
  return {.num_input_pipelines = static_cast<int>(workers_.size()),
          .input_pipeline_id = static_cast<int>(place),
          .num_replicas_in_sync = replicas_};
}

std::vector<uint64_t> WorkerResources::gone(const std::set<uint64_t>& resources) const {
  std::vector<uint64_t> gone;
  MutexLock lock(mutex_);
  for (uint64_t id : resources) {
    const auto found = resources_.find(id);
    if (found == resources_.end() || found->second.expired()) gone.push_back(id);
  }
  return gone;
}

}  // namespace trireme::internal
