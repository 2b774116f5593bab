#include "trireme/coordinator/per_worker_values.h"

#include <ATen/ops/zeros_like.h>

#include "trireme/capture/device_scope.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/function/function.h"

namespace trireme::internal {

StandIns::StandIns(const DrawnShapes& drawn, const StandIns& before, const FunctionStep& step)
    : drawn_(drawn) {
  for (size_t i = 0; i < before.sources_.size() && i < step.draws.size(); ++i) {
    const Draw& draw = step.draws[i];
    if (draw.resource != 0) continue;
    std::vector<Element>& elements = own_elements_[before.sources_[i]];
    auto next = step.inputs.begin() + static_cast<ptrdiff_t>(draw.first_input);
    for (size_t j = 0; j < draw.elements; ++j, next += static_cast<ptrdiff_t>(draw.tensors)) {
      elements.emplace_back(next, next + static_cast<ptrdiff_t>(draw.tensors));
    }
  }
}

// The same for the same one, so that a function that is given it twice draws from one.
Iterator StandIns::iterator(const std::shared_ptr<WorkerResource>& resource) {
  const auto known = iterators_.find(resource->id());
  if (known != iterators_.end()) return known->second;
  const Iterator made = add(Iterator::placeholder(examples_of(resource), resource->id()));
  iterators_.emplace(resource->id(), made);
  return made;
}

Iterator StandIns::iterator(const Iterator& own) {
  const auto known = own_iterators_.find(own.source());
  if (known != own_iterators_.end()) return known->second;
  const auto elements = own_elements_.find(own.source());
  const bool again = elements != own_elements_.end() && !elements->second.empty();
  const Iterator made = add(again ? Iterator::placeholder(elements->second, 0) : own);
  own_iterators_.emplace(own.source(), made);
  return made;
}

Iterator StandIns::add(Iterator iterator) {
  sources_.push_back(iterator.source());
  return iterator;
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
