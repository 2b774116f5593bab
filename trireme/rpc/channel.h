#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/frame.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/retry.h"

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

struct CallOptions {
  Time deadline = after(std::chrono::seconds(60));
  // By when the server must have been heard of, if that is sooner: a call in one frame each way
  // must have been answered, and of a streamed one the first frame of an answer or a grant must
  // have come. If the server is lost after that, the connection's own pings detect it.
  Time first_word = Time::max();
  // The incarnation that is meant. 0: the one that was there at the last hello.
  uint64_t incarnation = 0;
  // The answer may be larger than a frame and is streamed. A call without this flag is cheaper, and
  // its answer may have at most kMaxFrameBytes.
  bool large_response = false;
  // Wait until the deadline for a peer that is not up yet, instead of failing at once.
  bool wait_for_ready = false;
  std::stop_token stop = {};
  // Where the answer's tensors are to lie; none: in new memory. What is there must not be used
  // before the answer has come, and is anything if that is an error.
  Destination into = nullptr;
  // Repeats the call until the deadline when it may have been lost; none: it fails at once.
  std::optional<RetryPolicy> retry = std::nullopt;
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

using Response = absl::StatusOr<Message>;
using OnResponse = absl::AnyInvocable<void(Response)>;

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
