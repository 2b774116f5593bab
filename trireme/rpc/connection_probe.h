#pragma once

#include <functional>
#include <string>

#include "trireme/base/clock.h"

namespace trireme::internal {

// The result of a TCP connection of our own to an address. Later enumerators are more specific.
// gRPC only reports that it could not connect, and reports nothing while it waits.
enum class Found {
  kNoSuchHost,   // the host name cannot be resolved
  kUnreachable,  // there is no route to the machine
  kSilent,       // the connection is not answered, or nothing is sent on it
  kRefused,      // the machine answers, but no process listens on the port
  kPlain,        // a server that speaks HTTP/2 without TLS, as gRPC does
  kTls,          // a server that speaks TLS
  kOther,        // another program
};

struct Probe {
  Found found;
  std::string system;  // the system's error text, or ""
};

// Connects to an address, "host:port", to find out what is there. Blocks until shortly after
// `limit` at most.
Probe probe_connection(const std::string& address, Time limit);

// Finds out whether an address, "host:port", refuses connections: the machine answers, but no
// process listens on the port, at any address of the host that has a route. Does not block. Calls
// `done` once, on a thread of its own, usually before `limit`; looking up the name may take longer.
void find_refusal(const std::string& address, Time limit, std::function<void(bool refused)> done);

}  // namespace trireme::internal
