#pragma once

#include <cstdint>

#include "trireme/base/clock.h"
#include "trireme/rpc/frame.h"

namespace trireme {

// A sane share of this machine's memory: half of it, at most 64 GiB.
uint64_t default_receive_bytes();

// How much a server remembers of what it answered to requests that may be done only once.
struct AnswerLimits {
  size_t answers = 1 << 17;
  uint64_t bytes = 256 << 20;
  Duration age = std::chrono::minutes(10);  // longer than any caller goes on retrying
  size_t callers = 1 << 16;
};

// What peers may make a server hold, and how long. Checked before memory is taken.
struct ServerLimits {
  // Of one message.
  MessageLimits message;

  // Bytes of requests that have begun to arrive and are not whole yet, as their senders declared
  // them: of one connection, and of all. Requests of one frame do not count.
  uint64_t connection_receive_bytes = default_receive_bytes() / 2;
  uint64_t receive_bytes = default_receive_bytes();

  // Bytes that gRPC may hold beside that, of all connections: they have arrived and are not read
  // yet, or, up to a quarter, wait in pieces to be served (Method::scatters). Senders that keep to
  // the protocol send 8 MiB ahead (rpc/flow_control.h); under those that do not, gRPC closes
  // windows first and then cancels calls, as it finds them.
  uint64_t unread_bytes = default_receive_bytes() / 4;

  // Calls under way: of one connection, where further ones wait at the caller, and of all, beyond
  // which they are refused.
  int connection_calls = 1024;
  int calls = 32768;

  AnswerLimits remembered;

  // A connection that has not finished its handshake by then is closed.
  Duration handshake_time = std::chrono::seconds(20);
  // A caller that sends its request, or takes its answer, more slowly than this is let go: in all
  // transfer_time plus a second for each transfer_rate bytes that it moved.
  Duration transfer_time = std::chrono::seconds(30);
  uint64_t transfer_rate = 256 << 10;
  // A connection that is silent is asked whether it is still there, and closed when it does not
  // answer.
  Duration ping_after = std::chrono::seconds(60);
  Duration ping_timeout = std::chrono::seconds(20);
};

}  // namespace trireme
