#include "trireme/strategy/replica_count.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/task_server.h"
#include "trireme/testing/error_of.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// Two workers that have not been started, and their ports.
class ReplicaCountTest : public testing::Test {
 protected:
  void start(int worker, int gpus) {
    servers_.push_back(value_or_throw(TaskServer::start({.spec = spec_,
                                                         .task = {"worker", worker},
                                                         .devices = DeviceList{.gpus = gpus},
                                                         .services = {make_server_service}})));
  }
  std::unique_ptr<ReplicaCount> count(Duration limit, std::optional<int> given = {}) const {
    return std::make_unique<ReplicaCount>(given, spec_, Credentials::insecure(), limit);
  }

  const std::vector<PortReservation> ports_ = [] {
    std::vector<PortReservation> ports;
    for (int i = 0; i < 2; ++i) ports.push_back(value_or_throw(PortReservation::make()));
    return ports;
  }();
  const ClusterSpec spec_{{"worker", {ports_[0].address(), ports_[1].address()}}};
  std::vector<std::unique_ptr<TaskServer>> servers_;
};

TEST_F(ReplicaCountTest, IsTheNumberOfGpusOfEachWorker) {
  for (int worker : {0, 1}) start(worker, 2);
  EXPECT_EQ(count(seconds(10))->get(), 2);
  EXPECT_EQ(count(seconds(10), 3)->get(), 3);
}

TEST_F(ReplicaCountTest, IsOneWithoutGpus) {
  for (int worker : {0, 1}) start(worker, 0);
  EXPECT_EQ(count(seconds(10))->get(), 1);
  EXPECT_EQ(ReplicaCount({}, ClusterSpec(), Credentials::insecure(), seconds(0)).get(), 1);
}

TEST_F(ReplicaCountTest, RejectsWorkersThatDiffer) {
  start(0, 2);
  start(1, 1);
  EXPECT_EQ(
      error_text([&] { count(seconds(10))->get(); }),
      "/job:worker/task:0 has 2 GPUs, but /job:worker/task:1 has 1; each worker has a replica "
      "for each of its GPUs, and all workers must have the same number. Declare equal devices "
      "(trireme server --devices), or set .replicas of the strategy");
  EXPECT_EQ(count(seconds(10), 2)->get(), 2);
}

TEST_F(ReplicaCountTest, IsAskedForWhenItIsNeeded) {
  const auto later = count(seconds(10));
  for (int worker : {0, 1}) start(worker, 2);
  EXPECT_EQ(later->get(), 2);
  servers_.clear();
  EXPECT_EQ(later->get(), 2);
}

TEST_F(ReplicaCountTest, GoesOnWithTheWorkersThatAnswer) {
  start(1, 2);
  testing::internal::CaptureStderr();
  EXPECT_EQ(count(milliseconds(300))->get(), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("/job:worker/task:0 (" + ports_[0].address() +
                        ") did not tell how many GPUs they have; each worker has 2 replicas"));
}

TEST_F(ReplicaCountTest, SaysForWhomItHasWaited) {
  const Error error = error_of([&] { count(milliseconds(100))->get(); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr("waited 100ms for /job:worker/task:0 (" +
                                      ports_[0].address() + "), /job:worker/task:1"));
  EXPECT_THAT(error.what(), HasSubstr("start a worker, or set .replicas of the strategy"));
}

}  // namespace
}  // namespace trireme::internal
