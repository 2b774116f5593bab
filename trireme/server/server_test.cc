#include "trireme/server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/server/in_process_cluster.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

absl::StatusOr<Hello> hello(const ClusterSpec& spec, const TaskId& task) {
  Channel channel({.address = spec.address(task), .task = task.to_string()});
  return channel.hello(after(seconds(10)), /*wait_for_ready=*/false);
}

TEST(Server, ServesTheTaskOfItsCluster) {
  const PortReservation port = value_or_throw(PortReservation::make());
  const ClusterSpec spec{{"ps", {port.address()}}};
  Server server(spec, "ps", 0);
  EXPECT_EQ(server.target(), "grpc://" + port.address());
  EXPECT_EQ(value_or_throw(hello(spec, {"ps", 0})).incarnation, server.incarnation());
  server.stop();
  EXPECT_EQ(error_code(hello(spec, {"ps", 0}).status()), ErrorCode::kTaskUnreachable);
  server.stop();
}

TEST(Server, SaysWhatIsMissingOrWrong) {
  EXPECT_EQ(error_of([] {
              Server server(Cluster(ClusterSpec{{"worker", {"127.0.0.1:2222"}}}));
            }),
            "this process has no task to serve: say which with TF_CONFIG's \"task\" or with "
            "--task_type and --task_index");
  EXPECT_THAT(error_of([] {
                Server server(ClusterSpec{{"worker", {"10.0.0.1:2222"}}}, "worker", 0);
              }),
              HasSubstr("refused to listen on 10.0.0.1:2222"));
  EXPECT_EQ(
      error_of([] {
        Server server(ClusterSpec{{"worker", {"127.0.0.1:2222"}}}, "worker", 0, {.threads = -1});
      }),
      "threads is -1; it may be 0 or more");
}

TEST(Server, SigtermEndsJoin) {
  const PortReservation port = value_or_throw(PortReservation::make());
  const ClusterSpec spec{{"worker", {port.address()}}};
  Server server(spec, "worker", 0);
  std::future<int> joined = std::async(std::launch::async, [&] { return server.join(); });
  const auto handled = [] {
    struct sigaction action = {};
    sigaction(SIGTERM, nullptr, &action);
    return action.sa_handler != SIG_DFL;
  };
  for (const Time limit = after(seconds(10)); !handled() && Clock::real().now() < limit;) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(handled()) << "join() does not handle SIGTERM";
  kill(getpid(), SIGTERM);
  EXPECT_EQ(joined.get(), 0);
  EXPECT_FALSE(hello(spec, {"worker", 0}).ok());
}

TEST(InProcessCluster, RunsEveryTask) {
  InProcessCluster cluster({.workers = 3, .ps = 2});
  EXPECT_EQ(cluster.spec().num_tasks("worker"), 3);
  EXPECT_EQ(cluster.spec().num_tasks("ps"), 2);
  for (const TaskId& task : cluster.spec().all_tasks()) {
    EXPECT_EQ(value_or_throw(hello(cluster.spec(), task)).task, task.to_string());
  }
  EXPECT_FALSE(cluster.resolver().is_server());
}

TEST(InProcessCluster, OneTaskStopsAndComesBackWithANewIncarnation) {
  InProcessCluster cluster({.workers = 2, .ps = 1});
  const TaskId task = {"worker", 1};
  const uint64_t before = value_or_throw(hello(cluster.spec(), task)).incarnation;
  cluster.stop(task);
  EXPECT_FALSE(cluster.is_running(task));
  EXPECT_EQ(error_code(hello(cluster.spec(), task).status()), ErrorCode::kTaskUnreachable);
  EXPECT_TRUE(hello(cluster.spec(), {"worker", 0}).ok());
  cluster.start(task);
  EXPECT_NE(value_or_throw(hello(cluster.spec(), task)).incarnation, before);
  EXPECT_THROW(cluster.stop({"worker", 7}), Error);
}

TEST(InProcessCluster, StartsAndStopsAgainAndAgain) {
  // .ci/full repeats this to a hundred.
  for (int i = 0; i < 5; ++i) {
    InProcessCluster cluster({.workers = 3, .ps = 2});
    EXPECT_TRUE(hello(cluster.spec(), {"ps", 1}).ok()) << i;
  }
}

TEST(InProcessCluster, RefusesAnEmptyOne) {
  EXPECT_EQ(error_of([] { InProcessCluster cluster({.workers = 0}); }),
            "an in-process cluster of 0 workers and 0 ps; give at least one task");
}

}  // namespace
}  // namespace trireme
