#include "trireme/coordinator/per_worker_values.h"

#include <ATen/ops/zeros_like.h>

#include "trireme/coordinator/worker_resource.h"
#include "trireme/graph/device_scope.h"

namespace trireme::internal {

Iterator StandIns::iterator(const std::shared_ptr<WorkerResource>& resource) {
  return Iterator::placeholder(examples_of(resource), resource->id());
}

at::Tensor StandIns::tensor(const std::shared_ptr<WorkerResource>& resource) {
  const OwnWork own;
  // Of its own, so that it can be told from others among the inputs.
  at::Tensor stand_in = at::zeros_like(examples_of(resource)[0][0]);
  tensors_.push_back({stand_in, resource->id()});
  return stand_in;
}

std::vector<Element> StandIns::examples_of(const std::shared_ptr<WorkerResource>& resource) {
  resources_[resource->id()] = resource;
  const auto found = drawn_.find(resource->id());
  if (found == drawn_.end() || found->second.empty()) return {resource->example()};
  const OwnWork own;
  std::vector<Element> examples;
  for (const ElementSpec& spec : found->second) examples.push_back(zeros(spec));
  return examples;
}

}  // namespace trireme::internal
