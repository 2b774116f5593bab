#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/call.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/frame.h"
#include "trireme/rpc/message.h"

namespace trireme {
namespace internal {
class ServingQueues;  // rpc/call_queue.h
}

class FaultInjector;  // rpc/fault_injector.h

inline constexpr char kHelloMethod[] = "/trireme.Hello/Hello";

struct ChannelOptions {
  std::string address;
  std::string task;     // who is meant to be there; empty: whoever is
  uint64_t caller = 0;  // incarnation of the server or program that calls; 0: this process's own
  std::string caller_task;
  Credentials credentials = Credentials::loopback();
  MessageLimits limits;
  // What its calls suffer; none: nothing.
  std::shared_ptr<FaultInjector> faults = nullptr;
  // Of the server that calls: its threads take in the answers. None: threads of the process do.
  std::shared_ptr<internal::ServingQueues> serving = nullptr;
};

// Who is at the other end.
struct Hello {
  std::string task;
  uint64_t incarnation = 0;
  std::string release;
  int64_t pid = 0;
};

namespace internal {

// The question and the answer of a hello.
Message hello_request(const ChannelOptions& options);
absl::StatusOr<Hello> read_hello(const absl::StatusOr<Message>& answer);

}  // namespace internal

// A connection to one server, made at the first call and again after it broke. Errors name the
// task, its address and the method; those of the transport are TASK_UNREACHABLE, and calls to a
// task that was started again are refused by it with INCARNATION_CHANGED. Thread-safe.
class Channel {
 public:
  explicit Channel(ChannelOptions options);
  ~Channel();  // calls under way go on and hold what they need

  // Asks who is there, checks that it is who was meant, and remembers the incarnation: from then on
  // calls are meant for it. Blocks until the deadline.
  absl::StatusOr<Hello> hello(Time deadline);
  // From now on calls are meant for the incarnation that answered.
  void remember(const Hello& hello);

  // Calls back exactly once, on a thread that serves many calls: it must not block.
  void call(const std::string& method, Message request, const CallOptions& options,
            OnResponse on_response);

  // Blocks. The calling thread itself drives the call: no other thread has to wake for it.
  Response call(const std::string& method, Message request, const CallOptions& options = {});

  const ChannelOptions& options() const;
  const std::string& task() const;
  const std::string& address() const;
  // Of the last hello; 0 before.
  uint64_t incarnation() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme
