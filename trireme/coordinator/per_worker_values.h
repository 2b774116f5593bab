#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "trireme/base/access.h"
#include "trireme/data/iterator.h"

namespace trireme {
namespace internal {
class WorkerResource;
}

// A handle for a per-worker value: each worker has an iterator or a tensor of its own. Passed to
// schedule(), it stands for the value of the worker that runs the closure:
//
//   auto offset = coordinator.create_per_worker_tensor(
//       [](const tr::InputContext& context) { return torch::tensor(context.input_pipeline_id); });
//   coordinator.schedule(shift, x, offset);
//
// Copies refer to the same values. Once no copy and no closure refers to them, a worker drops its
// value when it is next sent another one.
template <typename T>
class PerWorkerValues {
  static_assert(std::is_same_v<T, Iterator> || std::is_same_v<T, at::Tensor>);

 private:
  friend struct internal::Access<PerWorkerValues>;
  explicit PerWorkerValues(std::shared_ptr<internal::WorkerResource> resource)
      : resource_(std::move(resource)) {}

  std::shared_ptr<internal::WorkerResource> resource_;
};

// A handle for the datasets of the workers, one for each worker, made by
// ClusterCoordinator::create_per_worker_dataset().
class PerWorkerDataset {
 public:
  // Returns the iterator over the dataset. Every call returns the same one: elements that closures
  // have drawn are consumed.
  const PerWorkerValues<Iterator>& iterator() const { return iterator_; }
  // Lets closures that are scheduled from now on draw from the first elements again, for the next
  // epoch. Shuffled elements come in another order. Closures that were scheduled before are not
  // affected, even if they have not run yet. The datasets are sent to the workers again.
  void restart() const;

 private:
  friend struct internal::Access<PerWorkerDataset>;
  explicit PerWorkerDataset(PerWorkerValues<Iterator> iterator) : iterator_(std::move(iterator)) {}

  PerWorkerValues<Iterator> iterator_;
};

template <typename T>
struct internal::Access<PerWorkerValues<T>> {
  static PerWorkerValues<T> make(std::shared_ptr<WorkerResource> resource) {
    return PerWorkerValues<T>(std::move(resource));
  }
  static const std::shared_ptr<WorkerResource>& resource(const PerWorkerValues<T>& values) {
    return values.resource_;
  }
};

template <>
struct internal::Access<PerWorkerDataset> {
  static PerWorkerDataset make(std::shared_ptr<WorkerResource> resource) {
    return PerWorkerDataset(Access<PerWorkerValues<Iterator>>::make(std::move(resource)));
  }
  static const std::shared_ptr<WorkerResource>& resource(const PerWorkerDataset& dataset) {
    return Access<PerWorkerValues<Iterator>>::resource(dataset.iterator_);
  }
};

}  // namespace trireme
