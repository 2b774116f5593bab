#include "trireme/rpc/socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace trireme::internal {

void set_socket_option(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.get(), level, option, &value, sizeof(value));
}

int poll_time(Time limit) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::real().now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

FileDescriptor make_event() {
  return FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

void set_event(const FileDescriptor& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event.get(), &one, sizeof(one));
}

bool wait_for(const Socket& socket, short events, Time limit) {
  pollfd waited = {socket.get(), events, 0};
  while (true) {
    const int ready = poll(&waited, 1, poll_time(limit));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (ready == 0 && Clock::real().now() >= limit) return false;
  }
}

int connect_by(const Socket& socket, const addrinfo& address, Time limit) {
  if (socket.get() < 0) return errno;
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(socket, POLLOUT, limit)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

int look_up(const std::string& host, int port, SocketAddresses& addresses) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == 0) addresses.reset(found);
  return error;
}

}  // namespace trireme::internal
