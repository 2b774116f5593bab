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

// A call that arrived whole and waits for its answer. Owned by whoever works on it; may be moved to
// another thread. Destroying it unanswered answers with INTERNAL, so that no caller is forgotten.
class ServerCall {
 public:
  explicit ServerCall(std::shared_ptr<internal::IncomingCall> call);
  ServerCall(ServerCall&&) noexcept = default;
  ServerCall& operator=(ServerCall&&) noexcept = default;
  ~ServerCall();

  const std::string& method() const;
  Message& request();
  // The bytes of those tensors of the request that are on the meta device, by their number
  // (Method::scatters).
  std::vector<ScatteredTensor>& scattered();
  // (caller, request id) names a request uniquely, and a repetition of it equally.
  uint64_t request_id() const;
  uint64_t caller() const;
  // Who calls, by its certificate; nobody when there are none.
  const std::optional<Peer>& peer() const;
  Time deadline() const;
  // Stops when the caller cancels, gives up at its deadline or is gone.
  std::stop_token stop_token() const;

  // Answers; once.
  void respond(absl::StatusOr<Message> response);

 private:
  std::shared_ptr<internal::IncomingCall> call_;
};

// Called on a thread that serves many calls: it must not block. Long work moves the call to an
// executor and answers from there.
using Handler = std::function<void(ServerCall)>;

// What it means that a request arrives again, as it does when its answer was lost.
enum class Repeats {
  // To do it again does no harm and gives an answer as good as the first.
  kHarmless = 1,
  // It is done once: the server keeps the answer and gives it again. The answer's tensors must not
  // be changed later. A handler answers CANCELLED only if it did nothing. Calls have to be meant
  // for an incarnation: after Channel::hello.
  kAnsweredOnce = 2,
};

// Whoever adds a method has to say who may call it and what a repetition does: there are no
// defaults, and together the methods are the one table of roles (docs/security.md).
struct Method {
  std::string name;  // "/trireme.Service/Method"
  Roles callers;     // all others are refused, if there are certificates that tell roles
  Repeats repeats;
  Handler handler;
  // Reads only the first frame of a request until this budget has room for all of it, so that its
  // sender waits and no memory grows. None: requests are read as they come.
  std::shared_ptr<ByteBudget> intake = nullptr;
  // For a method with an intake: whether the large tensors of a request with this body may stay in
  // the pieces in which they arrive, which saves a copy. Only as far as gRPC, whose memory that is,
  // has room for them; otherwise they come as any others.
  std::function<bool(const std::string& body)> scatters = nullptr;
};

// A module offers its methods as one of these; the server that it is registered with owns it.
class Service {
 public:
  virtual ~Service() = default;
  virtual std::vector<Method> methods() = 0;
};

// A method that takes and returns protobufs, without tensors, and is quick.
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
