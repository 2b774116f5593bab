#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "trireme/data/element.h"
#include "trireme/data/iterator.h"

namespace trireme::internal {

class WorkerResource;
struct FunctionStep;

// Shapes of the elements that a worker has drawn, by resource.
using DrawnShapes = std::map<uint64_t, std::vector<ElementSpec>>;

// Provides the arguments that stand in for per-worker values while a function is captured: zeros of
// their shapes. When the function is captured again, also provides stand-ins for iterators of the
// client program: the elements that were drawn for the closure. Not thread-safe.
class StandIns {
 public:
  StandIns() = default;
  // Makes stand-ins for a second capture, for the shapes that a worker has drawn. `before` are the
  // stand-ins of the first capture, which resulted in `step`.
  StandIns(const DrawnShapes& drawn, const StandIns& before, const FunctionStep& step);

  // Returns the stand-in for the iterator of a resource. The same resource has the same stand-in.
  Iterator iterator(const std::shared_ptr<WorkerResource>& resource);
  // Returns a new stand-in for the tensor of a resource.
  at::Tensor tensor(const std::shared_ptr<WorkerResource>& resource);
  // Returns the stand-in for an iterator of the client program. In a first capture that is the
  // iterator itself.
  Iterator iterator(const Iterator& own);

  using Resources = std::map<uint64_t, std::shared_ptr<WorkerResource>>;
  const Resources& resources() const { return resources_; }
  // A tensor that stands in for that of a resource.
  struct Tensor {
    at::Tensor stand_in;
    uint64_t resource;
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Returns the sources of the iterators that were asked for, each once, in the order of the first
  // request. A step lists its draws in the same order.
  const ElementSources& sources() const { return sources_; }

 private:
  std::vector<Element> examples_of(const std::shared_ptr<WorkerResource>& resource);
  Iterator add(Iterator iterator);

  DrawnShapes drawn_;
  std::map<std::shared_ptr<ElementSource>, std::vector<Element>> own_elements_;
  Resources resources_;
  std::map<uint64_t, Iterator> iterators_;                            // By resource.
  std::map<std::shared_ptr<ElementSource>, Iterator> own_iterators_;  // By the original's source.
  std::vector<Tensor> tensors_;
  ElementSources sources_;
};

}  // namespace trireme::internal
