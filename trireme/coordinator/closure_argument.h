#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "trireme/coordinator/per_worker_values.h"
#include "trireme/coordinator/remote_value.h"
#include "trireme/coordinator/stand_ins.h"
#include "trireme/data/iterator.h"

namespace trireme::internal {

template <typename T>
constexpr bool kIsRemoteValue = false;
template <typename R>
constexpr bool kIsRemoteValue<RemoteValue<R>> = true;

// An argument of a closure: a T, or a per-worker T.
template <typename T>
class ClosureArgument {
 public:
  template <typename U>
    requires std::convertible_to<U, T> || kIsRemoteValue<std::decay_t<U>>
  ClosureArgument(U&& value) : value_(convert(std::forward<U>(value))) {}
  ClosureArgument(PerWorkerValues<T> value)
    requires std::same_as<T, Iterator> || std::same_as<T, at::Tensor>
      : resource_(Access<PerWorkerValues<T>>::resource(value)) {}

  bool is_per_worker() const { return resource_ != nullptr; }
  // Returns true for an iterator of the client program.
  bool is_own_iterator() const { return std::is_same_v<T, Iterator> && !is_per_worker(); }
  // Returns the value. Must not be called for a per-worker value.
  T value() const { return *value_; }
  // Returns the value, or its stand-in.
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
    static_assert(!kIsRemoteValue<std::decay_t<U>>,
                  "a RemoteValue cannot be an argument: its closure may not have run yet. "
                  "fetch() it, or combine both functions into one");
    return std::forward<U>(value);
  }

  std::optional<T> value_;
  std::shared_ptr<WorkerResource> resource_;  // Null unless the value is a per-worker value.
};

}  // namespace trireme::internal
