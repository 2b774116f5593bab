#pragma once

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/collective/cluster_group.h"
#include "trireme/collective/group_service.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/task_server.h"

namespace trireme::internal {

// Several servers in one process, each with a member of the group.
class ClusterGroupTest : public testing::Test {
 protected:
  using FormedGroup = absl::StatusOr<std::shared_ptr<Group>>;

  // Lease of the tests that wait for it. A machine with other work may be slower than that, so the
  // other tests keep the default.
  static constexpr Duration kTestLease = std::chrono::seconds(1);
  // Limit of waits for events that come much sooner, unless the machine has other work.
  static constexpr Duration kPatience = std::chrono::seconds(20);

  void start_servers(int count) {
    std::vector<std::string> addresses;
    for (int i = 0; i < count; ++i) {
      ports_.push_back(value_or_throw(PortReservation::make()));
      addresses.push_back(ports_.back().address());
      tasks_.push_back({"worker", i});
    }
    spec_ = ClusterSpec{{"worker", addresses}};
    for (int i = 0; i < count; ++i) start_server(i);
  }

  void start_server(int index) {
    servers_[index] = value_or_throw(TaskServer::start(
        {.spec = spec_,
         .task = tasks_[index],
         .faults = faults_.contains(index) ? std::make_shared<FaultInjector>(1, faults_.at(index))
                                           : nullptr,
         .services = {make_collective_service}}));
  }

  std::future<FormedGroup> form(int rank, Duration timeout = kPatience) {
    return std::async(std::launch::async, [this, rank, timeout] {
      return form_group(
          servers_[rank]->context(),
          {.name = "test", .tasks = tasks_, .lease = lease_, .deadline = after(timeout)});
    });
  }

  void form_all() {
    std::vector<std::future<FormedGroup>> formed;
    for (size_t i = 0; i < tasks_.size(); ++i) formed.push_back(form(static_cast<int>(i)));
    for (auto& each : formed) groups_.push_back(value_or_throw(each.get()));
  }

  // Ends the groups, and forms new ones of the same name on the same servers.
  void form_again() {
    groups_.clear();
    form_all();
  }

  // Connects a member to another one, so that its next call takes less time.
  void connect(int from, int to) {
    send(from, to, {.sequence = 1});
    (void)groups_[to]->receive(1, after(kPatience));
  }

  // Blocks until the group of a member has failed, and returns the cause.
  absl::Status failure_of(int rank, Duration timeout = kPatience);

  // Sends a parcel and returns the future status.
  std::future<absl::Status> send(int from, int to, Parcel parcel) {
    auto sent = std::make_shared<std::promise<absl::Status>>();
    groups_[from]->send(to, std::move(parcel),
                        [sent](const absl::Status& status) { sent->set_value(status); });
    return sent->get_future();
  }

  Duration lease_ = GroupOptions().lease;
  std::vector<PortReservation> ports_;
  std::vector<TaskId> tasks_;
  ClusterSpec spec_;
  std::map<int, std::vector<FaultRule>> faults_;  // faults of the calls of each server
  std::map<int, std::unique_ptr<TaskServer>> servers_;
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace trireme::internal
