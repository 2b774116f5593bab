#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/frame.h"
#include "trireme/rpc/message.h"

namespace trireme {
namespace internal {
class MessageStream;  // rpc/message_stream.h
class ServingQueues;  // rpc/call_queue.h
}  // namespace internal

class FaultInjector;  // rpc/fault_injector.h

inline constexpr char kHelloMethod[] = "/trireme.Hello/Hello";

// Options of a Channel.
struct ChannelOptions {
  std::string address;      // host:port of the server
  std::string task;         // task that is expected at the address; empty for any
  uint64_t caller = 0;      // incarnation of the calling server; 0 for one of this process
  std::string caller_task;  // task of the calling server; empty for a client program
  Credentials credentials = Credentials::loopback();
  MessageLimits limits;  // limits of an answer
  // True to find out by a hello whether the server can open shared memory of this process. Calls
  // may then use it (CallOptions::shared).
  bool shared_memory = false;
  // Faults injected into calls; null for none.
  std::shared_ptr<FaultInjector> faults = nullptr;
  // Queues of the calling server, whose threads then receive the answers. Null to use threads that
  // the process shares (internal::CompletionLoop).
  std::shared_ptr<internal::ServingQueues> serving = nullptr;
};

// A server's answer to a hello.
struct Hello {
  std::string task;
  uint64_t incarnation = 0;  // identity of this start of the task
  std::string release;       // its version of Trireme
  int64_t pid = 0;
  bool shares_memory = false;  // true if the server can open shared memory of this process
  std::string cannot_share;    // reason why a server on this machine cannot
};

namespace internal {

// Makes the request of a hello, and parses its answer.
Message hello_request(const ChannelOptions& options);
absl::StatusOr<Hello> read_hello(const absl::StatusOr<Message>& answer);

}  // namespace internal

// A connection to one server, made at the first call and again after it broke. Errors name the
// task, its address and the method. Errors of the transport are TASK_UNREACHABLE. A task that was
// restarted rejects calls that are meant for its former incarnation with INCARNATION_CHANGED.
// Thread-safe. Example:
//
//   Channel channel({.address = "10.0.0.1:2222", .task = "/job:ps/task:0"});
//   TRIREME_RETURN_IF_ERROR(channel.hello(after(std::chrono::seconds(10))).status());
//   Response answer = channel.call("/trireme.Service/Method", make_message(request));
class Channel {
 public:
  explicit Channel(ChannelOptions options);
  // Does not wait. Calls in flight go on and keep what they need.
  ~Channel();

  // Asks which task and incarnation is at the address, fails if it is not the expected task, and
  // remembers the incarnation (see remember). Blocks until the deadline at most.
  absl::StatusOr<Hello> hello(Time deadline);
  // Addresses later calls to the incarnation in `hello`, and lets them use shared memory if its
  // server can open it.
  void remember(const Hello& hello);

  // Calls a method. Calls back exactly once, usually on a thread that serves many calls, so
  // `on_response` must not block.
  void call(const std::string& method, Message request, const CallOptions& options,
            OnResponse on_response);

  // Calls a method and blocks until it is answered. In most cases the calling thread itself polls
  // for the answer, so that no other thread has to wake up.
  Response call(const std::string& method, Message request, const CallOptions& options = {});

  // Opens a stream of messages to a method (Method::on_message), for the incarnation that is meant.
  // `stop` ends it. Faults are not injected into streams.
  std::shared_ptr<internal::MessageStream> open_stream(const std::string& method,
                                                       uint64_t incarnation, std::stop_token stop);

  const ChannelOptions& options() const;
  const std::string& task() const;
  const std::string& address() const;
  // Returns the incarnation found by the last hello; 0 before.
  uint64_t incarnation() const;
  // Returns true if calls can use memory that is shared with the server (CallOptions::shared).
  bool shares_memory() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
