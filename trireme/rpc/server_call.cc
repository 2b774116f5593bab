#include "trireme/rpc/service.h"

#include <utility>

#include "trireme/base/status.h"
#include "trireme/rpc/incoming_call.h"

namespace trireme {

ServerCall::ServerCall(std::shared_ptr<internal::IncomingCall> call) : call_(std::move(call)) {}

ServerCall::~ServerCall() {
  if (call_) {
    respond(make_status(ErrorCode::kInternal, "the handler dropped the call without an answer"));
  }
}

const std::string& ServerCall::method() const {
  return call_->method();
}
Message& ServerCall::request() {
  return call_->request();
}
std::vector<ScatteredTensor>& ServerCall::scattered() {
  return call_->scattered();
}
at::Tensor ServerCall::place_for(size_t index, c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return call_->places().find(index, sizes, dtype);
}
uint64_t ServerCall::request_id() const {
  return call_->prefix().request_id;
}
uint64_t ServerCall::caller() const {
  return call_->prefix().sender;
}
const std::optional<Peer>& ServerCall::peer() const {
  return call_->peer();
}
Time ServerCall::deadline() const {
  return call_->deadline();
}
std::stop_token ServerCall::stop_token() const {
  return call_->stop_token();
}
void ServerCall::respond(absl::StatusOr<Message> response) {
  std::exchange(call_, nullptr)->respond(std::move(response));
}

}  // namespace trireme
