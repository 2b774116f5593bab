#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/cluster/cluster_spec.h"

namespace trireme {

// Reserves a free loopback port for a server that starts later, because a cluster spec must name
// the port before the server binds it. The port is bound but never listened on. A server that asks
// for this port, in any process, can bind it, but the system does not give it to a process that
// asks for any free port. Movable. The destructor frees the port.
class PortReservation {
 public:
  // Reserves a port that the system chooses.
  static absl::StatusOr<PortReservation> make();

  PortReservation(PortReservation&& other) noexcept;
  PortReservation& operator=(PortReservation&& other) noexcept;
  ~PortReservation();

  int port() const { return port_; }
  // Returns "127.0.0.1:PORT".
  std::string address() const;

 private:
  PortReservation(int socket, int port) : socket_(socket), port_(port) {}

  int socket_;
  int port_;
};

// Returns the spec with a reserved port in the place of each port 0. Adds the reservations to
// `ports`. Keep them until the servers have bound their ports.
absl::StatusOr<ClusterSpec> pick_ports(const ClusterSpec& spec,
                                       std::vector<PortReservation>& ports);

}  // namespace trireme
