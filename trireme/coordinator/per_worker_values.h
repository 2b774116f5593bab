#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/coordinator/remote_value.h"
#include "trireme/data/element.h"
#include "trireme/data/iterator.h"

namespace trireme {
namespace internal {

class WorkerResource;
struct FunctionStep;

// The elements that a worker has drawn, by the resource that they are of.
using DrawnShapes = std::map<uint64_t, std::vector<ElementSpec>>;

// What stands for the values of workers while a function is captured, zeros of their shapes; and,
// when it is captured again, for the program's iterators, the elements that were drawn for the
// closure.
class StandIns {
 public:
  StandIns() = default;
  // For elements that a worker has drawn, and for the same call as `before`, which gave that step.
  StandIns(const DrawnShapes& drawn, const StandIns& before, const FunctionStep& step);

  Iterator iterator(const std::shared_ptr<WorkerResource>& resource);
  at::Tensor tensor(const std::shared_ptr<WorkerResource>& resource);
  // One of the program's.
  Iterator iterator(const Iterator& own);

  using Resources = std::map<uint64_t, std::shared_ptr<WorkerResource>>;
  const Resources& resources() const { return resources_; }
  // Tensors that stand for the one of a resource.
  struct Tensor {
    at::Tensor stand_in;
    uint64_t resource;
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }
  // Of those that were asked for, each once, in the order in which they were: as a step has them.
  const ElementSources& sources() const { return sources_; }

 private:
  std::vector<Element> examples_of(const std::shared_ptr<WorkerResource>& resource);
  Iterator add(Iterator iterator);

  DrawnShapes drawn_;
  std::map<std::shared_ptr<ElementSource>, std::vector<Element>> own_elements_;
  Resources resources_;
  std::map<uint64_t, Iterator> iterators_;  // by resource
  std::map<std::shared_ptr<ElementSource>, Iterator> own_iterators_;
  std::vector<Tensor> tensors_;
  ElementSources sources_;
};

}  // namespace internal

// A value of which each worker has its own: an iterator, or a tensor. As an argument of schedule()
// it is that of the worker where the closure runs. A handle: copies mean the same.
template <typename T>
class PerWorkerValues {
  static_assert(std::is_same_v<T, Iterator> || std::is_same_v<T, at::Tensor>);

 public:
  explicit PerWorkerValues(std::shared_ptr<internal::WorkerResource> resource)
      : resource_(std::move(resource)) {}

  const std::shared_ptr<internal::WorkerResource>& resource() const { return resource_; }

 private:
  std::shared_ptr<internal::WorkerResource> resource_;
};

// A dataset of which each worker has its own.
class PerWorkerDataset {
 public:
  explicit PerWorkerDataset(std::shared_ptr<internal::WorkerResource> resource)
      : iterator_(std::move(resource)) {}

  // Always the same one: what closures have drawn is drawn.
  const PerWorkerValues<Iterator>& iterator() const { return iterator_; }

 private:
  PerWorkerValues<Iterator> iterator_;
};

namespace internal {

// An argument of a closure: a T, or one of each worker.
template <typename T>
class ClosureArgument {
 public:
  template <typename U>
    requires std::convertible_to<U, T> || std::derived_from<std::decay_t<U>, RemoteValue>
  ClosureArgument(U&& value) : value_(convert(std::forward<U>(value))) {}
  ClosureArgument(PerWorkerValues<T> value)
    requires std::same_as<T, Iterator> || std::same_as<T, at::Tensor>
      : resource_(value.resource()) {}

  bool is_per_worker() const { return resource_ != nullptr; }
  bool is_own_iterator() const { return std::is_same_v<T, Iterator> && !is_per_worker(); }
  T value() const { return *value_; }
  T value(StandIns& stand_ins) const {
    if constexpr (std::is_same_v<T, Iterator>) {
      return is_per_worker() ? stand_ins.iterator(resource_) : stand_ins.iterator(*value_);
    } else if constexpr (std::is_same_v<T, at::Tensor>) {
      if (is_per_worker()) return stand_ins.tensor(resource_);
    }
    return *value_;
  }

 private:
  template <typename U>
  static T convert(U&& value) {
    static_assert(!std::derived_from<std::decay_t<U>, RemoteValue>,
                  "a RemoteValue cannot be an argument: its closure may not have run yet. "
                  "fetch() it, or make both functions one");
    return std::forward<U>(value);
  }

  std::optional<T> value_;
  std::shared_ptr<WorkerResource> resource_;
};

}  // namespace internal
}  // namespace trireme
