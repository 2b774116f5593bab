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
  // Nothing at the end, and from then on. May throw what LibTorch throws.
  virtual absl::StatusOr<std::optional<T>> next() = 0;
};

// From the beginning. Streams of one seed give the same.
std::unique_ptr<Stream<Element>> open_stream(const DatasetStepPtr& step, uint64_t seed);

}  // namespace trireme::internal
