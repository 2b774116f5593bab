#pragma once

// The templates of strategy.h, which includes this file.

#include <memory>
#include <utility>

#include "trireme/distribute/strategy.h"
#include "trireme/strategy/per_replica.h"

namespace trireme {

template <typename Module, typename... Args>
auto Strategy::distribute(Args&&... args) const {
  check_scope();
  const StrategyScope in = scope();
  if constexpr (internal::ModulePointer<Module>) {
    Module holder(std::forward<Args>(args)...);
    track_module(*holder);
    return holder;
  } else {
    auto module = std::make_shared<Module>(std::forward<Args>(args)...);
    track_module(*module);
    return module;
  }
}

template <internal::ModulePointer Module>
Module Strategy::distribute(Module module) const {
  check_scope();
  track_module(*module);
  return module;
}

template <typename Module, typename Local>
void Strategy::pull(const Module& module, const Local& local) const {
  pull_module(*module, *local);
}

template <typename Module, typename Local>
void Strategy::push(const Module& module, const Local& local) const {
  push_module(*module, *local);
}

template <typename Fn, typename... Args>
auto Strategy::run(Fn&& fn, Args&&... args) const {
  return internal::run_replicas(replica_set(), fn, args...);
}

template <typename T>
T Strategy::reduce(ReduceOp op, const PerReplica<T>& values) const {
  return internal::reduce_replicas(op, values, replica_set().workers);
}

}  // namespace trireme
