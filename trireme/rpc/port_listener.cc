#include "trireme/rpc/port_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/status.h"

// A client of gRPC sends the first bytes of a connection: those of HTTP/2, or those of TLS. Only
// a program that asks what is at the port may wait for the server's first bytes, so a connection
// that stays silent for a moment goes to gRPC, too.
namespace trireme::internal {
namespace {

using std::chrono::milliseconds;

// Connections that wait to be accepted.
constexpr int kBacklog = 4096;
// Time after which a connection without a byte is not that of a lane.
constexpr Duration kSilentTime = milliseconds(100);
// Time for which nothing is accepted if the process has no descriptors left.
constexpr Duration kPause = milliseconds(100);

template <typename T>
void set_option(const Socket& socket, int level, int option, T value) {
  setsockopt(socket.fd(), level, option, &value, sizeof(value));
}

bool is_wildcard(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    return reinterpret_cast<sockaddr_in*>(address.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return address.ai_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<sockaddr_in6*>(address.ai_addr)->sin6_addr);
}

void set_port(addrinfo& address, int port) {
  // The port is at the same place for both families.
  reinterpret_cast<sockaddr_in*>(address.ai_addr)->sin_port = htons(static_cast<uint16_t>(port));
}

int port_of(const Socket& socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PortListener>> PortListener::bind(PortListenerOptions options) {
  std::unique_ptr<PortListener> listener(new PortListener(std::move(options)));
  const std::string& text = listener->options_.address;
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  listener->port_ = std::atoi(text.c_str() + colon + 1);
  SocketAddresses addresses(nullptr, &freeaddrinfo);
  if (const int error = look_up(host, listener->port_, addresses); error != 0) {
    return make_status(ErrorCode::kNotFound, gai_strerror(error));
  }
  // A wildcard of either family stands for all addresses of both. Machines without IPv6 have those
  // of the other one only.
  if (is_wildcard(*addresses)) {
    SocketAddresses any(nullptr, &freeaddrinfo);
    if (look_up("::", listener->port_, any) == 0 && listener->listen_on(*any).ok()) return listener;
  }
  absl::Status result = make_status(ErrorCode::kNotFound, "the host has no address");
  for (addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    set_port(*each, listener->port_);  // further addresses of a name get the port of the first
    const absl::Status status = listener->listen_on(*each);
    if (error_code(status) == ErrorCode::kAlreadyExists) return status;
    if (listener->listeners_.empty()) result = status;
  }
  if (listener->listeners_.empty()) return result;
  return listener;
}

PortListener::PortListener(PortListenerOptions options)
    : options_(std::move(options)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::Status PortListener::listen_on(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // Lets a server start again at once. Two sockets cannot listen on one port all the same.
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) {
    set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, is_wildcard(address) ? 0 : 1);
  }
  if (socket.fd() < 0 || ::bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(socket.fd(), kBacklog) != 0) {
    return make_status(
        errno == EADDRINUSE ? ErrorCode::kAlreadyExists : ErrorCode::kFailedPrecondition,
        std::strerror(errno));
  }
  if (port_ == 0) port_ = port_of(socket);
  listeners_.push_back(std::move(socket));
  return absl::OkStatus();
}

PortListener::~PortListener() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.fd(), &one, sizeof(one));
  thread_.join();
}

void PortListener::start() {
  thread_ = std::thread([this] { run(); });
}

void PortListener::run() {
  set_thread_name("trireme-accept");
  Time paused_until = {};
  std::vector<pollfd> waited;
  while (true) {
    const Time now = Clock::real().now();
    const bool paused = now < paused_until;
    Time limit = paused ? paused_until : Time::max();
    waited.assign(1, {wake_.fd(), POLLIN, 0});
    for (const Socket& listener : listeners_) {
      waited.push_back({paused ? -1 : listener.fd(), POLLIN, 0});
    }
    for (const Arrival& arrival : arrivals_) {
      waited.push_back({arrival.socket.fd(), POLLIN, 0});
      limit = std::min(limit, arrival.limit);
    }
    poll(waited.data(), waited.size(), limit == Time::max() ? -1 : poll_time(limit));
    if (waited[0].revents != 0) return;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (waited[1 + i].revents != 0 && !accept_from(listeners_[i])) {
        paused_until = Clock::real().now() + kPause;
      }
    }
    sort_arrivals();
  }
}

bool PortListener::accept_from(const Socket& listener) {
  while (true) {
    Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    }
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(
        socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
        static_cast<int>(std::chrono::duration_cast<milliseconds>(options_.silence_limit).count()));
    arrivals_.push_back({std::move(socket), after(kSilentTime), ""});
  }
}

void PortListener::sort_arrivals() {
  for (auto arrival = arrivals_.begin(); arrival != arrivals_.end();) {
    const Verdict verdict = look_at(*arrival);
    if (verdict == Verdict::kUnknown) {
      ++arrival;
      continue;
    }
    if (verdict == Verdict::kOther) options_.on_connection(std::move(arrival->socket));
    if (verdict == Verdict::kLane && options_.lanes != nullptr) {
      options_.lanes->deliver(arrival->bytes.substr(kLanePrefaceBytes),
                              Lane(std::move(arrival->socket)));
    }
    arrival = arrivals_.erase(arrival);
  }
}

PortListener::Verdict PortListener::look_at(Arrival& arrival) const {
  constexpr size_t kAll = kLanePrefaceBytes + LaneTable::kTokenBytes;
  const bool late = Clock::real().now() >= arrival.limit;
  const int fd = arrival.socket.fd();
  if (arrival.bytes.empty()) {
    char first;
    const ssize_t got = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) return Verdict::kBroken;
      return late ? Verdict::kOther : Verdict::kUnknown;
    }
    if (got == 0) return Verdict::kBroken;
    if (first != kLanePreface[0]) return Verdict::kOther;
    arrival.limit = after(options_.handshake_time);
  }
  char bytes[kAll];
  const ssize_t got = recv(fd, bytes, kAll - arrival.bytes.size(), MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return Verdict::kBroken;
  if (got > 0) arrival.bytes.append(bytes, static_cast<size_t>(got));
  const size_t seen = std::min(arrival.bytes.size(), kLanePrefaceBytes);
  if (arrival.bytes.compare(0, seen, kLanePreface, seen) != 0) return Verdict::kBroken;
  if (arrival.bytes.size() == kAll) return Verdict::kLane;
  return late && got <= 0 ? Verdict::kBroken : Verdict::kUnknown;
}

}  // namespace trireme::internal
