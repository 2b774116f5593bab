#pragma once

#include <netdb.h>

#include <memory>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/base/file_descriptor.h"

// Sockets that are not gRPC's.
namespace trireme::internal {

using Socket = FileDescriptor;

// Sets an option of setsockopt().
void set_socket_option(const Socket& socket, int level, int option, int value);

// Returns the milliseconds until the limit, as poll() takes them: at most a minute, 0 once the
// limit has passed.
int poll_time(Time limit);

// Returns a descriptor that is readable after set_event(), to end a poll(); none if the system has
// none left.
FileDescriptor make_event();
void set_event(const FileDescriptor& event);

// Blocks until one of the events of poll() occurs. Returns false if none does by the limit.
bool wait_for(const Socket& socket, short events, Time limit);

// Connects a socket that does not block. Returns 0, or the system's error; ETIMEDOUT at the limit.
int connect_by(const Socket& socket, const addrinfo& address, Time limit);

using SocketAddresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Looks up the addresses of a host, to connect to or to listen on. Returns 0, or an error of
// getaddrinfo(). Has no time limit.
int look_up(const std::string& host, int port, SocketAddresses& addresses);

}  // namespace trireme::internal
