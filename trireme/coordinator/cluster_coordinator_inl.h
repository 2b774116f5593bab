#pragma once

// The templates of cluster_coordinator.h, which includes this file.

#include <ATen/core/grad_mode.h>

#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/coordinator/cluster_coordinator.h"

namespace trireme {

template <typename R, typename... Args>
RemoteValue<R> ClusterCoordinator::schedule(const Function<R(Args...)>& function,
                                            Argument<Args>... args) {
  return schedule(ClosureOptions(), function, std::move(args)...);
}

template <typename R, typename... Args>
RemoteValue<R> ClusterCoordinator::schedule(const ClosureOptions& options,
                                            const Function<R(Args...)>& function,
                                            Argument<Args>... args) {
  using Steps = internal::Access<Function<R(Args...)>>;
  using Result = internal::Access<RemoteValue<R>>;
  check_usable(options, (args.is_own_iterator() || ...));
  if (!(args.is_per_worker() || ...)) {
    const auto own = Steps::prepare(function, args.value()...);
    return Result::make(own == nullptr ? internal::PendingResult::ended()
                                       : schedule_step(options, *own));
  }
  using Values = std::tuple<std::decay_t<Args>...>;
  // Braces, because they evaluate their elements from left to right.
  const auto values = [](internal::StandIns& stand_ins, const auto&... given) {
    return Values{given.value(stand_ins)...};
  };
  auto stand_ins = std::make_shared<internal::StandIns>();
  const auto step = std::apply([&](auto&&... each) { return Steps::prepare(function, each...); },
                               values(*stand_ins, args...));
  if (step == nullptr) return Result::make(internal::PendingResult::ended());
  return Result::make(schedule_step(
      options, step, stand_ins,
      [function, values, ... args = std::move(args),
       grad_mode = c10::GradMode::is_enabled()](internal::StandIns& others) {
        const c10::AutoGradMode as_scheduled(grad_mode);
        return std::apply([&](auto&&... each) { return Steps::preview(function, each...); },
                          values(others, args...));
      }));
}

template <typename R, typename... Args>
RemoteValue<R> ClusterCoordinator::schedule(const NativeFunction<R(Args...)>& function,
                                            std::type_identity_t<std::decay_t<Args>>... args) {
  return schedule(ClosureOptions(), function, std::move(args)...);
}

template <typename R, typename... Args>
RemoteValue<R> ClusterCoordinator::schedule(const ClosureOptions& options,
                                            const NativeFunction<R(Args...)>& function,
                                            std::type_identity_t<std::decay_t<Args>>... args) {
  check_usable(options, /*own_iterators=*/false);
  return internal::Access<RemoteValue<R>>::make(
      schedule_native(options, function.name(), {std::move(args)...}));
}

template <typename R>
R ClusterCoordinator::fetch(const RemoteValue<R>& value) {
  return internal::Access<RemoteValue<R>>::get(value);
}

template <typename T>
auto ClusterCoordinator::fetch(const std::vector<T>& values) {
  std::vector<decltype(fetch(values[0]))> fetched;
  for (const T& value : values) fetched.push_back(fetch(value));
  return fetched;
}

template <typename K, typename T>
auto ClusterCoordinator::fetch(const std::map<K, T>& values) {
  std::map<K, decltype(fetch(values.begin()->second))> fetched;
  for (const auto& [key, value] : values) fetched.emplace(key, fetch(value));
  return fetched;
}

template <typename... Ts>
auto ClusterCoordinator::fetch(const std::tuple<Ts...>& values) {
  return std::apply([](const auto&... each) { return std::tuple{fetch(each)...}; }, values);
}

template <typename T, typename U>
auto ClusterCoordinator::fetch(const std::pair<T, U>& values) {
  return std::pair{fetch(values.first), fetch(values.second)};
}

}  // namespace trireme
