#include "trireme/coordinator/stand_ins.h"

#include <ATen/ops/zeros_like.h>

#include "trireme/capture/device_request.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/data/example_element.h"
#include "trireme/function/function.h"

// A function cannot be captured with the elements of workers, which the client program does not
// have. It is captured with zeros of their shapes instead: an iterator becomes a placeholder that
// yields zeros, a tensor becomes a tensor of zeros. The capture records them as inputs of the
// graph, and ClosureFunctions::draws_of() finds out which inputs they are.
//
// A second capture, for other shapes, must be the same call in all other respects. The elements of
// the client program's own iterators were drawn when the closure was scheduled, and are sent with
// it. A placeholder yields these again, so that the second capture consumes no further elements.
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

// Returns the same stand-in for the same resource, so that a function that gets an iterator twice
// draws from one.
Iterator StandIns::iterator(const std::shared_ptr<WorkerResource>& resource) {
  const auto known = iterators_.find(resource->id());
  if (known != iterators_.end()) return known->second;
  const Iterator made = add(Access<Iterator>::placeholder(examples_of(resource), resource->id()));
  iterators_.emplace(resource->id(), made);
  return made;
}

Iterator StandIns::iterator(const Iterator& own) {
  const auto known = own_iterators_.find(Access<Iterator>::source(own));
  if (known != own_iterators_.end()) return known->second;
  const auto elements = own_elements_.find(Access<Iterator>::source(own));
  const bool again = elements != own_elements_.end() && !elements->second.empty();
  const Iterator made = add(again ? Access<Iterator>::placeholder(elements->second, 0) : own);
  own_iterators_.emplace(Access<Iterator>::source(own), made);
  return made;
}

Iterator StandIns::add(Iterator iterator) {
  sources_.push_back(Access<Iterator>::source(iterator));
  return iterator;
}

at::Tensor StandIns::tensor(const std::shared_ptr<WorkerResource>& resource) {
  const SuspendDeviceCheck own;
  // A new tensor, so that draws_of() can identify it among the inputs.
  at::Tensor stand_in = at::zeros_like(examples_of(resource)[0][0]);
  tensors_.push_back({stand_in, resource->id()});
  return stand_in;
}

std::vector<Element> StandIns::examples_of(const std::shared_ptr<WorkerResource>& resource) {
  resources_[resource->id()] = resource;
  const auto found = drawn_.find(resource->id());
  if (found == drawn_.end() || found->second.empty()) return {resource->example()};
  const SuspendDeviceCheck own;
  std::vector<Element> examples;
  for (const ElementSpec& spec : found->second) examples.push_back(zeros(spec));
  return examples;
}

}  // namespace trireme::internal
