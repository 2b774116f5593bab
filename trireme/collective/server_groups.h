#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/collective/cluster_group.h"
#include "trireme/collective/group_service.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/task_server.h"

namespace trireme::internal {

// Servers in one process, for tests, each with a member of a group. Parcels travel over gRPC.
struct ServerGroups {
  explicit ServerGroups(int size) {
    std::vector<PortReservation> ports;
    std::vector<std::string> addresses;
    std::vector<TaskId> tasks;
    for (int rank = 0; rank < size; ++rank) {
      ports.push_back(value_or_throw(PortReservation::make()));
      addresses.push_back(ports.back().address());
      tasks.push_back({"worker", rank});
    }
    std::vector<std::future<absl::StatusOr<std::shared_ptr<Group>>>> formed;
    for (const TaskId& task : tasks) {
      servers.push_back(value_or_throw(TaskServer::start(
          {.spec = {{"worker", addresses}}, .task = task, .services = {make_collective_service}})));
      formed.push_back(std::async(std::launch::async, [&tasks, server = servers.back().get()] {
        return form_group(server->context(), {.name = "test", .tasks = tasks});
      }));
    }
    for (auto& each : formed) groups.push_back(value_or_throw(each.get()));
  }

  std::vector<std::unique_ptr<TaskServer>> servers;
  std::vector<std::shared_ptr<Group>> groups;
};

// Returns groups that keep their servers alive.
inline std::vector<std::shared_ptr<Group>> make_server_groups(int size) {
  const auto servers = std::make_shared<ServerGroups>(size);
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& group : servers->groups) groups.emplace_back(servers, group.get());
  return groups;
}

}  // namespace trireme::internal
