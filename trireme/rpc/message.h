#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme {

// The content of a request or an answer: a small body, which is a serialized protobuf of the
// method's type, and any number of tensors of any size, which travel beside it and never inside.
struct Message {
  std::string body;
  std::vector<at::Tensor> tensors;
};

// Serializes `proto` as the body of a message.
template <typename Proto>
Message make_message(const Proto& proto, std::vector<at::Tensor> tensors = {}) {
  return {proto.SerializeAsString(), std::move(tensors)};
}

// Parses the body of a message. Returns INVALID_ARGUMENT if it is not a valid `Proto`.
template <typename Proto>
absl::StatusOr<Proto> parse_body(const Message& message) {
  Proto proto;
  if (proto.ParseFromString(message.body)) return proto;
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("the body is not a valid ", proto.GetTypeName()));
}

}  // namespace trireme
