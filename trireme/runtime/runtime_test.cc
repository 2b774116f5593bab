#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/task_server.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

class TaskServerTest : public testing::Test {
 protected:
  TaskServerOptions options(bool exit_with_job = false) {
    return {.spec = spec_,
            .task = {"worker", 0},
            .devices = DeviceList::parse("cpu:2"),
            .exit_with_job = exit_with_job,
            .services = {make_server_service}};
  }

  PortReservation port_ = value_or_throw(PortReservation::make());
  ClusterSpec spec_{{"worker", {port_.address()}}};
};

absl::StatusOr<TaskDescription> ask(const std::string& address, const std::string& task) {
  Channel channel({.address = address, .task = task});
  std::promise<absl::StatusOr<TaskDescription>> answer;
  describe_task(channel, after(seconds(10)),
                [&](auto result) { answer.set_value(std::move(result)); });
  return answer.get_future().get();
}

TEST_F(TaskServerTest, DescribesItself) {
  auto server = value_or_throw(TaskServer::start(options()));
  const TaskDescription answer = value_or_throw(ask(port_.address(), "/job:worker/task:0"));
  EXPECT_EQ(answer.task, "/job:worker/task:0");
  EXPECT_EQ(answer.address, port_.address());
  EXPECT_EQ(answer.incarnation, server->context().incarnation);
  EXPECT_EQ(answer.pid, getpid());
  EXPECT_EQ(answer.devices,
            (std::vector<std::string>{"/job:worker/task:0/cpu:0", "/job:worker/task:0/cpu:1"}));
  EXPECT_LT(answer.uptime, seconds(60));
  EXPECT_EQ(answer.counters.at("rpc_server/trireme.Server/Describe/calls"), 1u);
}

TEST_F(TaskServerTest, RejectsATaskThatIsNotInTheSpec) {
  TaskServerOptions wrong = options();
  wrong.task = {"worker", 3};
  const absl::Status status = TaskServer::start(wrong).status();
  EXPECT_EQ(error_code(status), ErrorCode::kOutOfRange);
}

TEST_F(TaskServerTest, RejectsASecondServerOfATaskAndNamesBoth) {
  auto server = value_or_throw(TaskServer::start(options()));
  const absl::Status status = TaskServer::start(options()).status();
  EXPECT_EQ(error_code(status), ErrorCode::kAlreadyExists);
  EXPECT_THAT(describe(status), HasSubstr("/job:worker/task:0 cannot listen on"));
  EXPECT_THAT(describe(status),
              HasSubstr(absl::StrCat("held by /job:worker/task:0 (pid ", getpid())));
}

TEST_F(TaskServerTest, EveryStartHasItsOwnIncarnation) {
  uint64_t first = 0;
  {
    auto server = value_or_throw(TaskServer::start(options()));
    first = server->context().incarnation;
  }
  auto server = value_or_throw(TaskServer::start(options()));
  EXPECT_NE(server->context().incarnation, first);
}

TEST_F(TaskServerTest, ExitsWithTheJobOnlyIfConfigured) {
  for (bool exits : {false, true}) {
    auto server = value_or_throw(TaskServer::start(options(exits)));
    std::future<void> waited = std::async(std::launch::async, [&] { server->wait(); });
    Channel channel({.address = port_.address()});
    EXPECT_EQ(value_or_throw(end_job(channel, "done", after(seconds(10)))), exits);
    if (exits) {
      EXPECT_EQ(waited.wait_for(seconds(10)), std::future_status::ready);
    } else {
      EXPECT_TRUE(ask(port_.address(), "/job:worker/task:0").ok())
          << "the server should have stayed";
    }
    server->stop(after(seconds(10)));
    EXPECT_EQ(waited.wait_for(seconds(10)), std::future_status::ready);
  }
}

TEST_F(TaskServerTest, WaitReturnsWhenStopIsRequested) {
  auto server = value_or_throw(TaskServer::start(options()));
  std::stop_source stop;
  std::future<void> waited =
      std::async(std::launch::async, [&] { server->wait(stop.get_token()); });
  stop.request_stop();
  EXPECT_EQ(waited.wait_for(seconds(10)), std::future_status::ready);
}

TEST(PortReservation, PortsDiffer) {
  std::vector<PortReservation> ports;
  std::set<int> numbers;
  for (int i = 0; i < 50; ++i) {
    ports.push_back(value_or_throw(PortReservation::make()));
    numbers.insert(ports.back().port());
  }
  EXPECT_EQ(numbers.size(), 50u);
}

}  // namespace
}  // namespace trireme
