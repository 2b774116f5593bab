#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/byte_budget.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/peer.h"
#include "trireme/tensor/scattered_tensor.h"

namespace trireme {

namespace internal {
class IncomingCall;
}

// A call that has arrived completely and waits for its answer. The handler owns it and may move it
// to another thread. Destroying it unanswered answers with INTERNAL, so that no caller is left
// waiting. Not thread-safe.
class ServerCall {
 public:
  explicit ServerCall(std::shared_ptr<internal::IncomingCall> call);
  ServerCall(ServerCall&&) noexcept = default;
  ServerCall& operator=(ServerCall&&) noexcept = default;
  ~ServerCall();

  // Returns the method's path, "/trireme.Service/Method".
  const std::string& method() const;
  Message& request();
  // Returns the bytes of the tensors that were left in pieces (Method::scatters), indexed like
  // request().tensors. In the request such a tensor is on the meta device.
  std::vector<ScatteredTensor>& scattered();
  // Returns the place that the caller offers for the index-th tensor of the answer, in memory that
  // it shares, or an undefined tensor if it offers none of this shape. A tensor of the answer that
  // is the place is not sent. It must not be written to after respond().
  at::Tensor place_for(size_t index, c10::IntArrayRef sizes, c10::ScalarType dtype);
  // Return the identity of the request. (caller, request id) is unique, and the same for
  // repetitions of the request.
  uint64_t request_id() const;
  uint64_t caller() const;
  // Returns the caller as its certificate names it; nullopt without certificates.
  const std::optional<Peer>& peer() const;
  Time deadline() const;
  // Returns a token that stops when the caller cancels, its deadline passes, or it is gone.
  std::stop_token stop_token() const;

  // Sends the answer. Must be called at most once; the call is unusable afterwards.
  void respond(absl::StatusOr<Message> response);

 private:
  std::shared_ptr<internal::IncomingCall> call_;
};

// Serves a call. Runs on a thread that serves many calls, so it must not block. For long work it
// moves the call to an executor, which answers it.
using Handler = std::function<void(ServerCall)>;

// A message that has arrived on a stream (internal::MessageStream).
struct StreamMessage {
  Message message;
  std::vector<ScatteredTensor> scattered;  // as ServerCall::scattered()
  uint64_t caller = 0;                     // incarnation of the sender
  std::optional<Peer> peer;                // as ServerCall::peer()
  // Tells the sender that the message was taken. An error ends the stream. Must be called once, on
  // any thread.
  std::function<void(const absl::Status&)> taken;
};

// Takes the messages of a stream, one at a time, in the order in which they were sent. Runs on a
// thread that serves many calls, so it must not block.
using StreamHandler = std::function<void(StreamMessage)>;

// The treatment of a request that arrives again, as it does when its answer was lost.
enum class Repeats {
  // The handler runs again. That does no harm, and the answer is as good as the first.
  kHarmless = 1,
  // The handler runs only once. The server keeps its answer and sends it again. The answer's
  // tensors must not be changed later. The handler may answer CANCELLED only if it has changed
  // nothing. Calls must name the incarnation that they are meant for (Channel::hello).
  kAnsweredOnce = 2,
};

// A method of a service. Roles and repetitions have no default, so that each method decides on
// them. The methods of all services are the only table of roles (docs/security.md).
struct Method {
  std::string name;  // "/trireme.Service/Method"
  Roles callers;     // roles that may call it; enforced if the server has certificates
  Repeats repeats;
  Handler handler;
  // Budget for the tensors of requests. A request is read up to the end of its tensor table, for
  // most requests one frame, and the rest is read once the budget has room for its tensors. Until
  // then the sender stops at what it was granted (rpc/flow_control.h), and no memory is allocated
  // for tensors. A request that arrives in one frame does not wait. Null to read requests as they
  // arrive.
  std::shared_ptr<ByteBudget> intake = nullptr;
  // For a method with an intake. Returns true if large tensors of a request with this body may stay
  // in the pieces in which they arrive, which saves a copy (ServerCall::scattered). The pieces are
  // gRPC's memory: if its share for them (ServerLimits::unread_bytes) is full, the tensors are
  // copied like any others.
  std::function<bool(const std::string& body)> scatters = nullptr;
  // Returns true if the tensors of a request with this body may be in memory that the caller shares
  // (rpc/shared_message.h). The caller can change it at any time, so the handler must not depend on
  // values that it has checked before. Null if no request may. Only for methods whose repetitions
  // are harmless.
  std::function<bool(const std::string& body)> shares = nullptr;
  // For a method that is a stream of messages, and has no other handler.
  StreamHandler on_message = nullptr;
};

// A group of methods that a module offers. The server that it is registered with owns it.
class Service {
 public:
  virtual ~Service() = default;
  // Returns the methods. Called once, when the server is created.
  virtual std::vector<Method> methods() = 0;
};

// Makes a method that takes and returns protobufs without tensors. `body` runs on a thread that
// serves many calls, so it must be quick. Example:
//
//   make_method<PingRequest, PingResponse>(
//       "/trireme.Ping/Ping", Roles::all(), Repeats::kHarmless,
//       [](const PingRequest& request) -> absl::StatusOr<PingResponse> { ... });
template <typename Request, typename Response>
Method make_method(std::string name, Roles callers, Repeats repeats,
                   std::function<absl::StatusOr<Response>(const Request&)> body) {
  return {std::move(name), callers, repeats, [body = std::move(body)](ServerCall call) {
            auto request = parse_body<Request>(call.request());
            if (!request.ok()) return call.respond(request.status());
            absl::StatusOr<Response> response = body(*request);
            if (!response.ok()) return call.respond(response.status());
            call.respond(make_message(*response));
          }};
}

}  // namespace trireme
