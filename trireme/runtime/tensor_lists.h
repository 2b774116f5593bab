#pragma once

#include <ATen/core/Tensor.h>
#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

// Puts lists of tensors, some of them undefined, into one message. Only defined tensors travel; the
// undefined ones are recorded by their index in the list.
namespace trireme::internal {

using Places = google::protobuf::RepeatedField<uint32_t>;

// Adds the defined tensors of a list to a message, and the indices of the undefined ones to
// `undefined`. Returns the length of the list.
uint32_t append_defined(std::vector<at::Tensor> list, std::vector<at::Tensor>& message,
                        Places& undefined);

// Takes lists out of the tensors of a message, in order. The message is not trusted: counts and
// indices that do not fit are errors. Not thread-safe.
class TensorReader {
 public:
  explicit TensorReader(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  // Returns the next list, which has `count` tensors, the undefined ones included.
  absl::StatusOr<std::vector<at::Tensor>> next(uint32_t count, const Places& undefined);
  // Returns the list of all tensors that are left.
  absl::StatusOr<std::vector<at::Tensor>> rest(const Places& undefined);

 private:
  std::vector<at::Tensor> tensors_;
  size_t next_ = 0;
};

}  // namespace trireme::internal
