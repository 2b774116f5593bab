#pragma once

#include <ATen/core/Tensor.h>
#include <google/protobuf/repeated_field.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

// Lists of tensors in one message, some of them undefined: only those that are defined travel, and
// the places of the others.
namespace trireme::internal {

using Places = google::protobuf::RepeatedField<uint32_t>;

// Adds a list to a message's tensors, and says where its undefined ones stand. Returns its length.
uint32_t append_defined(std::vector<at::Tensor> list, std::vector<at::Tensor>& message,
                        Places& undefined);

// Takes lists out of a message's tensors again, one after the other. Anybody may have sent them.
class TensorReader {
 public:
  explicit TensorReader(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  // With the undefined ones `count` tensors.
  absl::StatusOr<std::vector<at::Tensor>> next(uint32_t count, const Places& undefined);
  // All that are left.
  absl::StatusOr<std::vector<at::Tensor>> rest(const Places& undefined);

 private:
  std::vector<at::Tensor> tensors_;
  size_t next_ = 0;
};

}  // namespace trireme::internal
