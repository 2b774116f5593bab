#include "trireme/testing/tcp_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

// One thread forwards all connections with poll(). Each direction of a connection is a Pipe: pieces
// that are read from one socket wait in a queue, each with the time at which it is due, until they
// are written to the other socket. A delay moves that time, a blocked direction is not polled, and
// a cut closes both sockets with a reset. A byte in the wake pipe makes the thread notice changes
// that the test makes. The thread reads the settings under the mutex and does all I/O without it.

namespace trireme {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kMostWaiting = 64;  // Most pieces that wait in a pipe; beyond it the sender waits.
constexpr auto kLongestPoll = std::chrono::milliseconds(100);

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kInternal, absl::StrCat("TcpProxy: ", what, ": ", strerror(errno)));
}

sockaddr_in parse(const std::string& text) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  const size_t colon = text.rfind(':');
  address.sin_port = htons(std::stoi(text.substr(colon + 1)));
  if (inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("TcpProxy: '", text, "' is not a valid address"));
  }
  return address;
}

void prepare(int socket) {
  fcntl(socket, F_SETFL, O_NONBLOCK);
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Closes so that the other side sees a reset, as when a host dies.
void reset(int socket) {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(socket);
}

}  // namespace

TcpProxy::TcpProxy(const std::string& target, uint64_t seed, const std::string& listen_at)
    : target_(target), random_(seed) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = parse(listen_at);
  socklen_t size = sizeof(address);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 1024) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail("cannot listen");
  }
  address_ = absl::StrCat(listen_at.substr(0, listen_at.rfind(':') + 1), ntohs(address.sin_port));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail("cannot make a pipe");
  wake_read_ = ends[0];
  wake_write_ = ends[1];
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  while (!open_.empty()) close_connection(open_.begin()->first);
  for (int file : {listener_, wake_read_, wake_write_}) close(file);
}

void TcpProxy::set_delay(Duration least, Duration most) {
  MutexLock lock(mutex_);
  least_delay_ = least;
  most_delay_ = std::max(least, most);
}

void TcpProxy::set_cut(double probability) {
  MutexLock lock(mutex_);
  cut_ = probability;
}

void TcpProxy::block(Direction direction, bool blocked) {
  {
    MutexLock lock(mutex_);
    blocked_[static_cast<int>(direction)] = blocked;
  }
  wake();
}

void TcpProxy::cut_all() {
  {
    MutexLock lock(mutex_);
    cut_all_ = true;
  }
  wake();
}

void TcpProxy::wake() {
  (void)!write(wake_write_, "", 1);
}

void TcpProxy::run() {
  while (true) {
    bool blocked[2], cut_all = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      std::copy(std::begin(blocked_), std::end(blocked_), blocked);
      std::swap(cut_all, cut_all_);
    }
    if (cut_all) {
      cuts_ += open_.size();
      while (!open_.empty()) close_connection(open_.begin()->first);
    }
    Time now = Clock::real().now();
    Time wake_at = now + kLongestPoll;
    std::vector<pollfd> polled = {{listener_, POLLIN, 0}, {wake_read_, POLLIN, 0}};
    for (auto& [id, connection] : open_) {
      for (Pipe* pipe : {&connection.up, &connection.down}) {
        const bool is_blocked = blocked[static_cast<int>(pipe->direction)];
        const bool wants = !pipe->ended && pipe->waiting.size() < kMostWaiting && !is_blocked;
        polled.push_back({wants ? pipe->from : -1, POLLIN, 0});
        const bool due = !pipe->waiting.empty() && !is_blocked;
        if (due && pipe->waiting[0].due > now) wake_at = std::min(wake_at, pipe->waiting[0].due);
        polled.push_back({due && pipe->waiting[0].due <= now ? pipe->to : -1, POLLOUT, 0});
      }
    }
    const auto wait =
        std::chrono::ceil<std::chrono::milliseconds>(std::max(wake_at - now, Duration::zero()));
    poll(polled.data(), polled.size(), static_cast<int>(wait.count()));
    now = Clock::real().now();
    char ignored[256];
    while (read(wake_read_, ignored, sizeof(ignored)) > 0) {
    }
    size_t next = 2;
    std::vector<uint64_t> broken;
    for (auto& [id, connection] : open_) {
      bool fine = true;
      for (Pipe* pipe : {&connection.up, &connection.down}) {
        const bool readable = polled[next].fd >= 0 && polled[next].revents != 0;
        next += 2;
        if (blocked[static_cast<int>(pipe->direction)]) continue;
        fine = fine && pump(*pipe, readable, now);
      }
      const bool over = connection.up.shut && connection.down.shut;
      if (!fine || over) broken.push_back(id);
    }
    for (uint64_t id : broken) close_connection(id);
    if (polled[0].revents != 0) accept_one();
  }
}

void TcpProxy::accept_one() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = parse(target_);
  // The target is on loopback, so connect() does not block: it succeeds or fails at once.
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(server);
    reset(client);
    return;
  }
  prepare(client);
  prepare(server);
  ++connections_;
  Connection& made = open_[++last_id_];
  made.up.from = made.down.to = client;
  made.up.to = made.down.from = server;
  made.down.direction = Direction::kToClient;
}

// Reads from one side if it is readable, and writes the pieces that are due to the other. Returns
// false if the connection must be broken.
bool TcpProxy::pump(Pipe& pipe, bool readable, Time now) {
  if (readable && !pipe.ended) {
    std::string bytes(kPieceBytes, '\0');
    const ssize_t got = recv(pipe.from, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (got == 0) pipe.ended = true;
    if (got > 0) {
      bytes.resize(got);
      MutexLock lock(mutex_);
      if (std::bernoulli_distribution(cut_)(random_)) {
        ++cuts_;
        return false;
      }
      Time due = now;
      if (most_delay_ > Duration::zero()) {
        due += Duration(std::uniform_int_distribution<Duration::rep>(least_delay_.count(),
                                                                     most_delay_.count())(random_));
      }
      // Keep the order of the bytes: a piece is never due before the one ahead of it.
      if (!pipe.waiting.empty()) due = std::max(due, pipe.waiting.back().due);
      pipe.waiting.push_back({due, std::move(bytes)});
    }
  }
  while (!pipe.waiting.empty() && pipe.waiting[0].due <= now) {
    const std::string& bytes = pipe.waiting[0].bytes;
    const ssize_t sent = ::send(pipe.to, bytes.data() + pipe.written, bytes.size() - pipe.written,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    pipe.written += sent;
    if (pipe.written < bytes.size()) return true;
    pipe.written = 0;
    pipe.waiting.erase(pipe.waiting.begin());
  }
  if (pipe.ended && pipe.waiting.empty() && !pipe.shut) {
    shutdown(pipe.to, SHUT_WR);
    pipe.shut = true;
  }
  return true;
}

void TcpProxy::close_connection(uint64_t id) {
  const auto found = open_.find(id);
  reset(found->second.up.from);
  reset(found->second.up.to);
  open_.erase(found);
}

}  // namespace trireme
