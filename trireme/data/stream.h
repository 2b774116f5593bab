#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"

namespace trireme::internal {

// Results of streams: an item or the end, and a number of items that were skipped.
template <typename T>
using Next = absl::StatusOr<std::optional<T>>;
using Skipped = absl::StatusOr<int64_t>;

// Number of an element in a source in memory, counted from 0.
using Row = int64_t;

// Gives the items of one step of a dataset, one after the other. Not thread-safe.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns the next item, or nullopt at the end and in every call after it. May throw exceptions
  // of LibTorch.
  virtual Next<T> next() = 0;
  // Does what `count` calls of next() do, without making the items. Returns their number, which is
  // smaller than `count` only at the end.
  virtual Skipped skip(int64_t count) = 0;
};

template <typename T>
using StreamPtr = std::unique_ptr<Stream<T>>;
// Opens a stream again. The key differs for each repetition and decides, together with the seeds of
// the steps, what is random.
template <typename T>
using Opener = std::function<StreamPtr<T>(uint64_t key)>;

}  // namespace trireme::internal
