#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace trireme::internal {

// Gives the items of one step of a dataset, one after the other. Not thread-safe.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns the next item, or nullopt at the end and in every call after it. May throw exceptions
  // of LibTorch.
  virtual absl::StatusOr<std::optional<T>> next() = 0;
  // Does what `count` calls of next() do, without making the items. Returns their number, which is
  // smaller than `count` only at the end.
  virtual absl::StatusOr<int64_t> skip(int64_t count) = 0;
};

}  // namespace trireme::internal
