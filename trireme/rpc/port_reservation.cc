#include "trireme/rpc/port_reservation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/cluster/address.h"

namespace trireme {

absl::StatusOr<PortReservation> PortReservation::make() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const int on = 1;
  // A server can bind the same port only if both sockets have this option. PortListener sets it
  // too.
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("cannot reserve a loopback port: ", std::strerror(error)));
  }
  return PortReservation(fd, ntohs(address.sin_port));
}

PortReservation::PortReservation(PortReservation&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), port_(other.port_) {}

PortReservation& PortReservation::operator=(PortReservation&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(port_, other.port_);
  return *this;
}

PortReservation::~PortReservation() {
  if (socket_ >= 0) close(socket_);
}

std::string PortReservation::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

absl::StatusOr<ClusterSpec> pick_ports(const ClusterSpec& spec,
                                       std::vector<PortReservation>& ports) {
  std::map<std::string, std::map<int, std::string>> picked;
  for (const TaskId& task : spec.all_tasks()) {
    auto address = internal::Address::parse_own(spec.address(task));
    if (address.port == 0) {
      TRIREME_ASSIGN_OR_RETURN(PortReservation reserved, PortReservation::make());
      ports.push_back(std::move(reserved));
      address.port = ports.back().port();
    }
    picked[task.job][task.index] = address.to_string();
  }
  return ClusterSpec(std::map<std::string, TaskAddresses>(picked.begin(), picked.end()));
}

}  // namespace trireme
