#include "trireme/rpc/lane.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/cluster/address.h"

namespace trireme::internal {
namespace {

// Idle connections are checked after this time, so that a firewall in between does not forget them.
constexpr int kIdleSeconds = 30, kIdleProbeSeconds = 5, kIdleProbes = 4;

absl::Status lost(const std::string& why) {
  return make_status(ErrorCode::kUnavailable, absl::StrCat("the connection was lost: ", why));
}

}  // namespace

absl::StatusOr<size_t> Lane::send_some(const void* data, size_t size) {
  if (size == 0) return 0;
  while (true) {
    const ssize_t sent = send(socket_.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return lost(std::strerror(errno));
  }
}

absl::StatusOr<size_t> Lane::receive_some(void* data, size_t size) {
  if (size == 0) return 0;  // recv() would say that nothing has come
  while (true) {
    const ssize_t got = recv(socket_.get(), data, size, MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return lost("the other side has closed it");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return lost(std::strerror(errno));
  }
}

Lane::Lane(Socket socket) : socket_(std::move(socket)) {
  set_socket_option(socket_, IPPROTO_TCP, TCP_NODELAY, 1);
  set_socket_option(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_socket_option(socket_, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set_socket_option(socket_, IPPROTO_TCP, TCP_KEEPINTVL, kIdleProbeSeconds);
  set_socket_option(socket_, IPPROTO_TCP, TCP_KEEPCNT, kIdleProbes);
}

std::string LaneTable::expect() {
  std::string token(kTokenBytes, '\0');
  // Cannot fail for so few bytes, except before the system has gathered its first randomness.
  while (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
  }
  MutexLock lock(mutex_);
  expected_.try_emplace(token);
  return token;
}

absl::StatusOr<Lane> LaneTable::take(const std::string& token, Time deadline) {
  MutexLock lock(mutex_);
  for (bool in_time = true;; in_time = changed_.wait_until(mutex_, deadline)) {
    const auto found = expected_.find(token);
    if (found == expected_.end()) {
      return make_status(ErrorCode::kNotFound, "no connection is expected with this token");
    }
    if (found->second) {
      Lane lane = *std::move(found->second);
      expected_.erase(found);
      return lane;
    }
    if (!in_time) {
      expected_.erase(found);
      return make_status(ErrorCode::kDeadlineExceeded, "the connection was not made in time");
    }
  }
}

void LaneTable::forget(const std::string& token) {
  MutexLock lock(mutex_);
  expected_.erase(token);
}

void LaneTable::deliver(const std::string& token, Lane lane) {
  {
    MutexLock lock(mutex_);
    const auto found = expected_.find(token);
    if (found == expected_.end() || found->second) return;
    found->second = std::move(lane);
  }
  changed_.notify_all();
}

absl::StatusOr<Lane> connect_lane(const std::string& address, const std::string& token,
                                  Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const Address parsed, try_call([&] { return Address::parse(address); }));
  SocketAddresses addresses(nullptr, &freeaddrinfo);
  if (const int error = look_up(parsed.host, parsed.port, addresses); error != 0) {
    return lost(gai_strerror(error));
  }
  int error = EADDRNOTAVAIL, left = 0;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) ++left;
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next, --left) {
    Socket socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // An address that does not answer leaves time for the others.
    error = connect_by(socket, *each, after((deadline - Clock::real().now()) / left));
    if (error != 0) continue;
    Lane lane(std::move(socket));
    // The buffer of a new connection has room for these few bytes.
    const std::string preface = absl::StrCat(kLanePreface, token);
    TRIREME_ASSIGN_OR_RETURN(const size_t sent, lane.send_some(preface.data(), preface.size()));
    if (sent < preface.size()) return lost("it takes no bytes");
    return lane;
  }
  return lost(std::strerror(error));
}

}  // namespace trireme::internal
