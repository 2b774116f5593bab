#include "trireme/rpc/port_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/status.h"
#include "trireme/cluster/address.h"

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
// Attempts to find a port that is free at all addresses of a host.
constexpr int kAttempts = 10;

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
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PortListener>> PortListener::bind(PortListenerOptions options) {
  const std::string& text = options.address;
  const size_t colon = text.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 ||
      port > kMaxPort) {
    return invalid_argument(absl::StrCat("'", text, "' is not an address host:port"));
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  std::unique_ptr<PortListener> listener(new PortListener(std::move(options)));
  if (listener->wake_.get() < 0) {
    return make_status(ErrorCode::kResourceExhausted, std::strerror(errno));
  }
  absl::Status status;
  // If the host has several addresses and the port is free, it may be taken at the second address.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    listener->listeners_.clear();
    listener->port_ = port;
    status = listener->listen_on_host(host);
    if (port != 0 || error_code(status) != ErrorCode::kAlreadyExists) break;
  }
  if (!status.ok()) return status;
  return listener;
}

absl::Status PortListener::listen_on_host(const std::string& host) {
  SocketAddresses addresses(nullptr, &freeaddrinfo);
  if (const int error = look_up(host, port_, addresses); error != 0) {
    return make_status(ErrorCode::kNotFound, gai_strerror(error));
  }
  // A wildcard of either family stands for all addresses of both. Machines without IPv6 have those
  // of the other one only.
  if (is_wildcard(*addresses)) {
    SocketAddresses any(nullptr, &freeaddrinfo);
    if (look_up("::", port_, any) == 0) {
      const absl::Status status = listen_on(*any);
      if (status.ok() || error_code(status) == ErrorCode::kAlreadyExists) return status;
    }
  }
  absl::Status result;
  std::vector<std::string> seen;  // Files of host names may name an address twice.
  for (addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    set_port(*each, port_);  // further addresses of a name get the port of the first
    std::string address(reinterpret_cast<const char*>(each->ai_addr), each->ai_addrlen);
    if (std::ranges::find(seen, address) != seen.end()) continue;
    const absl::Status status = listen_on(*each);
    if (error_code(status) == ErrorCode::kAlreadyExists) return status;
    if (!status.ok()) result.Update(status);
    seen.push_back(std::move(address));
  }
  return listeners_.empty() ? result : absl::OkStatus();
}

PortListener::PortListener(PortListenerOptions options)
    : options_(std::move(options)), wake_(make_event()) {}

absl::Status PortListener::listen_on(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return make_status(ErrorCode::kFailedPrecondition, std::strerror(errno));
  // Lets a server start again at once. Two sockets cannot listen on one port all the same.
  set_socket_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) {
    set_socket_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, is_wildcard(address) ? 0 : 1);
  }
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
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
  set_event(wake_);
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
    waited_arrivals_ = arrivals_.size();
    waited.assign(1, {wake_.get(), POLLIN, 0});
    for (const Socket& listener : listeners_) {
      waited.push_back({paused ? -1 : listener.get(), POLLIN, 0});
    }
    for (const Arrival& arrival : arrivals_) {
      waited.push_back({arrival.socket.get(), POLLIN, 0});
      limit = std::min(limit, arrival.limit);
    }
    poll(waited.data(), waited.size(), limit == Time::max() ? -1 : poll_time(limit));
    if (waited[0].revents != 0) return;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (waited[1 + i].revents != 0 && !accept_from(listeners_[i])) {
        paused_until = Clock::real().now() + kPause;
      }
    }
    sort_arrivals(waited.data() + 1 + listeners_.size());
  }
}

bool PortListener::accept_from(const Socket& listener) {
  while (true) {
    Socket socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    }
    arrivals_.push_back({std::move(socket), after(kSilentTime), ""});
  }
}

void PortListener::sort_arrivals(const pollfd* waited) {
  const Time now = Clock::real().now();
  size_t left = waited_arrivals_;  // those that came since are looked at in the next round
  for (auto arrival = arrivals_.begin(); left > 0; --left, ++waited) {
    const Verdict verdict = waited->revents != 0 || now >= arrival->limit
                                ? look_at(*arrival, now >= arrival->limit)
                                : Verdict::kUnknown;
    if (verdict == Verdict::kUnknown) {
      ++arrival;
      continue;
    }
    if (verdict == Verdict::kOther) pass_on(std::move(arrival->socket));
    if (verdict == Verdict::kLane) {
      options_.lanes->deliver(arrival->bytes.substr(kLanePrefaceBytes),
                              Lane(std::move(arrival->socket)));
    }
    arrival = arrivals_.erase(arrival);
  }
}

void PortListener::pass_on(Socket socket) {
  // As gRPC does with the connections that it accepts.
  set_socket_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  const auto limit = std::chrono::duration_cast<milliseconds>(options_.silence_limit);
  set_socket_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
  options_.on_connection(std::move(socket));
}

PortListener::Verdict PortListener::look_at(Arrival& arrival, bool late) const {
  constexpr size_t kAll = kLanePrefaceBytes + LaneTable::kTokenBytes;
  const int fd = arrival.socket.get();
  if (arrival.bytes.empty()) {
    char first;
    const ssize_t got = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) return Verdict::kBroken;
      return late ? Verdict::kOther : Verdict::kUnknown;
    }
    if (got == 0) return Verdict::kBroken;
    if (first != kLanePreface[0]) return Verdict::kOther;
    if (options_.lanes == nullptr) return Verdict::kBroken;
    arrival.limit = after(options_.lane_time);
    late = false;
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
