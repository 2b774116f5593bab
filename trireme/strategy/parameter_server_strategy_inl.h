#pragma once

// The templates of parameter_server_strategy.h, which includes this file.

#include <memory>
#include <utility>

#include "trireme/function/module.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/strategy/per_replica.h"

namespace trireme {

template <typename Module, typename... Args>
auto ParameterServerStrategy::distribute(Args&&... args) const {
  const ParameterServers::Scope in = scope();
  if constexpr (requires(Module& holder) { *holder; }) {
    Module holder(std::forward<Args>(args)...);
    track(holder);
    return holder;
  } else {
    auto module = std::make_shared<Module>(std::forward<Args>(args)...);
    track(module);
    return module;
  }
}

template <typename Module, typename Local>
void ParameterServerStrategy::pull(const Module& module, const Local& local) const {
  pull_module(*module, *local);
}

template <typename Module, typename Local>
void ParameterServerStrategy::push(const Module& module, const Local& local) const {
  push_module(*module, *local);
}

template <typename Fn, typename... Args>
auto ParameterServerStrategy::run(Fn&& fn, Args&&... args) const {
  return internal::run_replicas(num_replicas_in_sync(), fn, args...);
}

template <typename T>
T ParameterServerStrategy::reduce(ReduceOp op, const PerReplica<T>& values) const {
  return internal::reduce_replicas(op, values);
}

}  // namespace trireme
