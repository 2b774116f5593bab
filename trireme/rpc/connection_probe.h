#pragma once

#include <string>

#include "trireme/base/clock.h"

namespace trireme::internal {

// The result of a TCP connection of our own to an address; later ones tell more. gRPC says only
// that it could not connect, and waits in silence when it was told to wait.
enum class Found {
  kNoSuchHost,   // the name means no address
  kUnreachable,  // there is no way to the machine
  kSilent,       // no answer to the connection, or none on it
  kRefused,      // the machine is there, nobody listens
  kPlain,        // HTTP/2, as gRPC without TLS speaks it
  kTls,
  kOther,  // another program
};

struct Probe {
  Found found;
  std::string system;  // what the system said, if it did
};

// Blocks until the limit at most.
Probe probe_connection(const std::string& address, Time limit);

}  // namespace trireme::internal
