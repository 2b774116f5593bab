#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace trireme {

// Operation that combines the values of replicas.
enum class ReduceOp {
  kSum,   // the sum
  kMean,  // the arithmetic mean
};

// Returns the sum or the mean of the values of all replicas, in each of them. To be called in
// strategy.run(), by all replicas, with values of the same shape and dtype; otherwise it throws
// Error. Outside of strategy.run(), and with one replica, it returns the value itself.
//
//   strategy.run([&](const torch::Tensor& x) {
//     auto mean = tr::all_reduce(tr::ReduceOp::kMean, x.mean(0));  // mean of the whole batch
//     return loss_of(x - mean);
//   }, inputs);
//
// No gradient flows through it: the result is a constant for the backward pass of a replica, which
// would have to go through the other replicas otherwise. The mean of integers is a float.
at::Tensor all_reduce(ReduceOp op, const at::Tensor& value);

// One value for each replica, in the order of their ids. strategy.run() returns it, and takes it as
// an argument that differs between replicas. Captured functions can take and return it:
//
//   tr::PerReplica<torch::Tensor> inputs({first, second});
//   auto losses = strategy.run([&](const torch::Tensor& x) { return loss_of(x); }, inputs);
//
// Thread-compatible, like a vector.
template <typename T>
class PerReplica {
 public:
  // Takes the values, one for each replica.
  explicit PerReplica(std::vector<T> values) : values_(std::move(values)) {}

  // Returns the values in the order of the replicas' ids.
  const std::vector<T>& values() const { return values_; }
  // Returns the number of replicas.
  size_t size() const { return values_.size(); }
  // Returns the value of a replica.
  T& operator[](size_t replica) { return values_[replica]; }
  // Returns the value of a replica.
  const T& operator[](size_t replica) const { return values_[replica]; }

 private:
  std::vector<T> values_;
};

}  // namespace trireme

#include "trireme/strategy/per_replica_inl.h"
