#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "trireme/data/dataset_step.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Gives the items of one step of a dataset, one after the other. Not thread-safe.
template <typename T>
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns the next item, or nullopt at the end and in every call after it. May throw exceptions
  // of LibTorch.
  virtual absl::StatusOr<std::optional<T>> next() = 0;
};

// Opens a stream at the first element of a step. Streams with the same seed give the same elements.
std::unique_ptr<Stream<Element>> open_stream(const DatasetStepPtr& step, uint64_t seed);

}  // namespace trireme::internal
