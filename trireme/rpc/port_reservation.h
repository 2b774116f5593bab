#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace trireme {

// A free loopback port, kept for a server that starts later: a cluster's spec has to name the port
// before the server takes it. The port is bound but never listened on, which lets a server of this
// or a child process take it and nobody else be given it. Movable; freed when destroyed.
class PortReservation {
 public:
  static absl::StatusOr<PortReservation> make();

  PortReservation(PortReservation&& other) noexcept;
  PortReservation& operator=(PortReservation&& other) noexcept;
  ~PortReservation();

  int port() const { return port_; }
  // "127.0.0.1:PORT"
  std::string address() const;

 private:
  PortReservation(int socket, int port) : socket_(socket), port_(port) {}

  int socket_;
  int port_;
};

}  // namespace trireme
