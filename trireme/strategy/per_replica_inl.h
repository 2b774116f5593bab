#pragma once

// The templates of per_replica.h, which includes this file. Structure<PerReplica<T>> makes
// PerReplica an argument and a result of captured functions.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/capture/aggregation.h"
#include "trireme/function/replicas.h"
#include "trireme/function/structure.h"
#include "trireme/strategy/per_replica.h"

namespace trireme {

template <typename T>
struct Structure<PerReplica<T>> {
  static constexpr bool kTensorsOnly = Structure<T>::kTensorsOnly;
  static void flatten(const PerReplica<T>& value, internal::Flattened& out) {
    Structure<std::vector<T>>::flatten(value.values(), out);
  }
  static PerReplica<T> replace(const PerReplica<T>& value, internal::TensorCursor& reader) {
    return PerReplica<T>(Structure<std::vector<T>>::replace(value.values(), reader));
  }
};

namespace internal {

// Throws Error unless there is one value for each replica.
void check_slices(size_t values, int replicas);

// Returns the value of an argument for one replica.
template <typename T>
T& slice(T& argument, int) {
  return argument;
}
template <typename T>
T& slice(PerReplica<T>& argument, int replica) {
  return argument[replica];
}
template <typename T>
const T& slice(const PerReplica<T>& argument, int replica) {
  return argument[replica];
}

template <typename T>
void check_argument(const T&, int) {}
template <typename T>
void check_argument(const PerReplica<T>& argument, int replicas) {
  check_slices(argument.size(), replicas);
}

// Calls `fn` once for each replica of this process. Implements run() of strategies.
template <typename Fn, typename... Args>
auto run_replicas(const ReplicaSet& replicas, Fn& fn, Args&... args) {
  using Result = std::invoke_result_t<Fn&, decltype(slice(args, 0))...>;
  (check_argument(args, replicas.here), ...);
  if constexpr (std::is_void_v<Result>) {
    for_each_replica(replicas, [&]([[maybe_unused]] int replica) { fn(slice(args, replica)...); });
  } else {
    std::vector<std::decay_t<Result>> results;
    for_each_replica(replicas, [&]([[maybe_unused]] int replica) {
      results.push_back(fn(slice(args, replica)...));
    });
    return PerReplica<std::decay_t<Result>>(std::move(results));
  }
}

inline Aggregation aggregation_of(ReduceOp op) {
  return op == ReduceOp::kSum ? Aggregation::kSum : Aggregation::kMean;
}

// Combines the values of the replicas tensor by tensor, with `workers` over all workers. Implements
// reduce() of strategies.
template <typename T>
T reduce_replicas(ReduceOp op, const PerReplica<T>& values, WorkerGroup* workers = nullptr) {
  static_assert(Structure<T>::kTensorsOnly, "reduce() takes tensors, or structures of tensors");
  std::vector<std::vector<at::Tensor>> by_replica;
  for (const T& value : values.values()) {
    Flattened flattened;
    Structure<T>::flatten(value, flattened);
    by_replica.push_back(std::move(flattened.tensors));
  }
  const std::vector<at::Tensor> reduced = aggregate(aggregation_of(op), by_replica, workers);
  TensorCursor reader(reduced);
  return Structure<T>::replace(values[0], reader);
}

}  // namespace internal
}  // namespace trireme
