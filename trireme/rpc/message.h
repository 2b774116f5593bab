#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme {

// What a call carries, either way: a small body, which is a serialized protobuf of the method's
// type, and any number of tensors of any size, which travel beside it and are never put into it.
struct Message {
  std::string body;
  std::vector<at::Tensor> tensors;
};

template <typename Proto>
Message make_message(const Proto& proto, std::vector<at::Tensor> tensors = {}) {
  return {proto.SerializeAsString(), std::move(tensors)};
}

template <typename Proto>
absl::StatusOr<Proto> parse_body(const Message& message) {
  Proto proto;
  if (proto.ParseFromString(message.body)) return proto;
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("the body is no ", proto.GetTypeName()));
}

}  // namespace trireme
