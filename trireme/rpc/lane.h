#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/socket.h"

namespace trireme::internal {

// A TCP connection that carries nothing but bytes, from one process to another. It is made through
// the port of a server (port_listener.h), without encryption. Bytes that both sides expect take
// half of the processor time that they take in messages of gRPC: they are received where they are
// used. Used by one thread at a time.
class Lane {
 public:
  // The socket is connected and does not block. Bytes that were sent still arrive after the lane is
  // destroyed.
  explicit Lane(Socket socket);

  // Returns the socket, to wait for it.
  const Socket& socket() const { return socket_; }

  // Sends as many bytes as the connection takes at the moment, and returns their number.
  // UNAVAILABLE if the connection was lost.
  absl::StatusOr<size_t> send_some(const void* data, size_t size);
  // Receives the bytes that have come, at most `size`, and returns their number. UNAVAILABLE if the
  // connection was lost or closed.
  absl::StatusOr<size_t> receive_some(void* data, size_t size);

 private:
  Socket socket_;
};

// The lanes that a process expects. A token that cannot be guessed tells them apart: only a
// process that was given it can connect. Thread-safe.
class LaneTable {
 public:
  static constexpr size_t kTokenBytes = 16;

  // Returns the token of a new lane, which stays open until take() or forget().
  std::string expect();
  // Blocks until the lane of the token has come, at most until the deadline. The token is no longer
  // valid afterwards.
  absl::StatusOr<Lane> take(const std::string& token, Time deadline);
  void forget(const std::string& token);

  // Stores the lane that came with a token, or closes it if nobody expects it.
  void deliver(const std::string& token, Lane lane);

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::optional<Lane>> expected_ ABSL_GUARDED_BY(mutex_);  // by token
};

// The first bytes of a lane's connection, followed by the token. They are neither those of HTTP/2
// nor those of TLS.
inline constexpr char kLanePreface[] = "\x01TRLANE\x01";
inline constexpr size_t kLanePrefaceBytes = sizeof(kLanePreface) - 1;

// Connects to the port of a server that expects a lane with this token. Blocks until the deadline
// at most, unless looking up the name takes longer. The server may still close the connection if it
// does not know the token.
absl::StatusOr<Lane> connect_lane(const std::string& address, const std::string& token,
                                  Time deadline);

}  // namespace trireme::internal
