#pragma once

#include <cstdint>

#include "trireme/base/clock.h"
#include "trireme/rpc/frame.h"

namespace trireme {

// Returns half of the memory that this process may use, but at least 1 GiB and at most 64 GiB.
uint64_t default_receive_bytes();

// Limits of what a server remembers of its answers to requests that must be executed only once
// (Repeats::kAnsweredOnce). An answer is dropped, oldest first, as soon as one limit is exceeded.
struct AnswerLimits {
  size_t answers = 1 << 17;                 // number of answers
  uint64_t bytes = 256 << 20;               // bytes of all answers
  Duration age = std::chrono::minutes(10);  // age of an answer; longer than any caller retries
  size_t callers = 1 << 16;                 // number of callers; requests of more are rejected
};

// Limits of what peers can make a server hold, and for how long. Sizes are checked before memory
// is allocated for them.
struct ServerLimits {
  // Limits of one message.
  MessageLimits message;

  // Bytes of requests that have begun to arrive and are not complete yet, as their senders declared
  // them: for one connection, and for all together. Bodies and tensor lists of up to 4 MiB
  // (Admission::kAdmissionThreshold) do not count. Neither do the tensors of a method with an
  // intake, which counts them itself (Method::intake).
  uint64_t connection_receive_bytes = default_receive_bytes() / 2;
  uint64_t receive_bytes = default_receive_bytes();

  // Memory that gRPC may hold in addition, for all connections together (its ResourceQuota): bytes
  // that have arrived and are not read yet, and, up to a quarter, requests that wait in pieces to
  // be served (Method::scatters). A sender that keeps to the protocol is at most 8 MiB ahead in
  // each call (rpc/flow_control.h). Against other senders gRPC first shrinks the windows of streams
  // and connections, and then cancels calls, which it picks at random.
  uint64_t unread_bytes = default_receive_bytes() / 4;

  // Memory of callers on the same machine that the server maps at once (rpc/segment_cache.h). It
  // belongs to the callers; a mapping keeps it for some seconds after they have dropped it. A
  // caller whose segment is larger uses the connection. 0 to use no shared memory.
  uint64_t shared_bytes = default_receive_bytes();

  // Calls in flight on one connection. Further ones wait at the caller.
  int connection_calls = 1024;
  // Calls in flight on the server. Further ones are rejected.
  int calls = 32768;

  AnswerLimits remembered;

  // A connection that has not finished its handshake in this time is closed.
  Duration handshake_time = std::chrono::seconds(20);
  // Time for sending a request, and again for taking an answer: transfer_time, plus one second for
  // each transfer_rate bytes that have been moved. The call of a slower caller is cancelled.
  Duration transfer_time = std::chrono::seconds(30);
  uint64_t transfer_rate = 256 << 10;
  // A connection that was silent for ping_after is pinged, and closed if no answer comes within
  // ping_timeout.
  Duration ping_after = std::chrono::seconds(60);
  Duration ping_timeout = std::chrono::seconds(20);
};

}  // namespace trireme
