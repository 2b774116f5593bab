#include "trireme/rpc/call_all.h"

#include <memory>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/rpc/call_group.h"

namespace trireme {
namespace {

// Collects the responses of one fan-out. The callbacks of its calls share ownership.
class FanOut {
 public:
  FanOut(size_t calls, OnResponses done)
      : group_(calls), responses_(calls), done_(std::move(done)) {}

  void on_response(size_t call, const std::string& task, Response response) {
    absl::Status status;
    if (response.ok()) {
      responses_[call] = *std::move(response);
    } else {
      status = with_origin(response.status(), {task, ""});
    }
    const auto result = group_.on_answer(std::move(status));
    if (!result) return;
    if (result->ok()) {
      done_(std::move(responses_));
    } else {
      done_(*result);
    }
  }

 private:
  CallGroup group_;
  // Needs no lock: each call writes its own element, and the last to answer reads them all, which
  // CallGroup orders after the writes.
  Responses responses_;
  OnResponses done_;  // called by the last response only
};

}  // namespace

void call_all(const std::string& method, std::vector<TargetedCall> calls, OnResponses done) {
  if (calls.empty()) return done(Responses());
  auto fan_out = std::make_shared<FanOut>(calls.size(), std::move(done));
  for (size_t i = 0; i < calls.size(); ++i) {
    TargetedCall& call = calls[i];
    call.channel->call(method, std::move(call.request), call.options,
                       [fan_out, i, task = call.channel->task()](Response response) {
                         fan_out->on_response(i, task, std::move(response));
                       });
  }
}

absl::StatusOr<Responses> call_all(const std::string& method, std::vector<TargetedCall> calls) {
  return call_and_wait<absl::StatusOr<Responses>>(
      [&](OnResponses done) { call_all(method, std::move(calls), std::move(done)); });
}

}  // namespace trireme
