#include "trireme/runtime/tensor_lists.h"

#include <utility>

#include "trireme/base/status.h"

namespace trireme::internal {

uint32_t append_defined(std::vector<at::Tensor> list, std::vector<at::Tensor>& message,
                        Places& undefined) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].defined()) {
      message.push_back(std::move(list[i]));
    } else {
      undefined.Add(static_cast<uint32_t>(i));
    }
  }
  return static_cast<uint32_t>(list.size());
}

absl::StatusOr<std::vector<at::Tensor>> TensorReader::next(uint32_t count,
                                                           const Places& undefined) {
  const size_t empty = static_cast<size_t>(undefined.size());
  if (empty > count || count - empty > tensors_.size() - next_) {
    return make_status(ErrorCode::kInvalidArgument,
                       "malformed message: it lists more tensors than it carries");
  }
  std::vector<at::Tensor> list;
  list.reserve(count);
  auto gap = undefined.begin();
  for (uint32_t i = 0; i < count; ++i) {
    if (gap != undefined.end() && *gap == i) {
      ++gap;
      list.emplace_back();
    } else if (next_ < tensors_.size()) {
      list.push_back(std::move(tensors_[next_++]));
    } else {
      break;
    }
  }
  if (list.size() == count && gap == undefined.end()) return list;
  return make_status(ErrorCode::kInvalidArgument,
                     "malformed message: the indices of its undefined tensors are out of order");
}

absl::StatusOr<std::vector<at::Tensor>> TensorReader::rest(const Places& undefined) {
  return next(static_cast<uint32_t>(tensors_.size() - next_ + undefined.size()), undefined);
}

}  // namespace trireme::internal
