#include "trireme/server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "trireme/base/status.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/runtime/cluster_status.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/session.h"
#include "trireme/server/in_process_cluster.h"
#include "trireme/server/services.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

absl::StatusOr<Hello> hello(const ClusterSpec& spec, const TaskId& task) {
  Channel channel({.address = spec.address(task), .task = task.to_string()});
  return channel.hello(after(seconds(10)));
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

TEST(Server, PicksAPortForPortZero) {
  const ClusterSpec spec{{"worker", {"127.0.0.1:0"}}};
  Server one(spec, "worker", 0), other(spec, "worker", 0);
  for (const Server* server : {&one, &other}) {
    ASSERT_THAT(server->target(), testing::MatchesRegex("grpc://127[.]0[.]0[.]1:[1-9][0-9]*"));
    const ClusterSpec picked{{"worker", {server->target().substr(7)}}};
    EXPECT_EQ(value_or_throw(hello(picked, {"worker", 0})).incarnation, server->incarnation());
  }
  EXPECT_NE(one.target(), other.target());
}

TEST(Server, RejectsPortsThatOtherTasksWouldNotLearn) {
  const ClusterSpec spec{{"worker", {"127.0.0.1:0", "127.0.0.1:0"}}};
  EXPECT_EQ(error_text([&] { Server server(spec, "worker", 0); }),
            "/job:worker/task:0 cannot serve at '127.0.0.1:0': the other tasks of its cluster "
            "would not learn the port that it picks. Give every task a port, or serve all of them "
            "in one process, with tr::InProcessCluster({.spec = spec})");
  const PortReservation port = value_or_throw(PortReservation::make());
  EXPECT_THAT(
      error_text([&] {
        Server server(ClusterSpec{{"worker", {port.address(), "127.0.0.1:0"}}}, "worker", 0);
      }),
      HasSubstr("job 'worker', task 1: the port of '127.0.0.1:0' is not known"));
}

TEST(Server, ClientsRejectPortsThatTheyDoNotKnow) {
  const ClusterSpec spec{{"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:0"}}};
  const std::string unknown =
      "cluster spec: job 'ps', task 0: the port of '127.0.0.1:0' is not known, since the task's "
      "server picks it; give the port that the server listens on";
  EXPECT_EQ(error_text([&] { ParameterServers servers(spec); }), unknown);
  EXPECT_EQ(error_text([&] { describe_cluster(spec); }), unknown);
  EXPECT_EQ(error_text([] { Session session("grpc://localhost:0"); }),
            "session target: address 'localhost:0' has port '0'; a port is a number from 1 to "
            "65535");
}

TEST(Server, RejectsInvalidOptions) {
  EXPECT_EQ(error_text([] {
              Server server(Cluster(ClusterSpec{{"worker", {"127.0.0.1:2222"}}}));
            }),
            "this process has no task to serve; set it with TF_CONFIG's \"task\" or with "
            "--task_type and --task_index");
  EXPECT_THAT(error_text([] {
                Server server(ClusterSpec{{"worker", {"0.0.0.0:2222"}}}, "worker", 0);
              }),
              HasSubstr("refused to listen on 0.0.0.0:2222"));
  EXPECT_EQ(
      error_text([] {
        Server server(ClusterSpec{{"worker", {"127.0.0.1:2222"}}}, "worker", 0, {.threads = -1});
      }),
      "threads is -1; it must be 0 or more");
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

// Reads the table of roles in docs/security.md. Returns the roles by method.
std::map<std::string, std::string> documented_table() {
  std::map<std::string, std::string> table;
  std::ifstream file(TRIREME_SOURCE_DIR "/docs/security.md");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "| `/trireme.")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    table[std::string(absl::StripAsciiWhitespace(absl::StrReplaceAll(cells.at(1), {{"`", ""}})))] =
        std::string(absl::StripAsciiWhitespace(cells.at(2)));
  }
  return table;
}

TEST(Server, EveryMethodOfEveryServiceIsInTheTableOfRoles) {
  const PortReservation port = value_or_throw(PortReservation::make());
  auto server = value_or_throw(TaskServer::start({.spec = ClusterSpec{{"ps", {port.address()}}},
                                                  .task = {"ps", 0},
                                                  .services = all_services()}));
  std::map<std::string, std::string> served;
  for (const auto& [method, roles] : server->rpc().method_table()) {
    served[method] = roles.to_string();
  }
  EXPECT_TRUE(served.contains("/trireme.Hello/Hello"));
  EXPECT_EQ(served, documented_table())
      << "the roles that services allow must match the table in docs/security.md";
}

TEST(Server, WithCertificatesAdmitsOnlyItsCluster) {
  const TemporaryFolder folder;
  const PortReservation port = value_or_throw(PortReservation::make());
  const ClusterSpec spec{{"worker", {port.address()}}, {"chief", {"127.0.0.1:1"}}};
  throw_if_error(write_certificates(folder.path(), spec).status());
  Server server(spec, "worker", 0, {.certs = folder.path()});
  const auto hello_as = [&](const Credentials& credentials) {
    Channel channel(
        {.address = port.address(), .task = "/job:worker/task:0", .credentials = credentials});
    return channel.hello(after(seconds(10))).status();
  };
  EXPECT_TRUE(hello_as(value_or_throw(Credentials::from_folder(folder.path(), {}))).ok());
  EXPECT_FALSE(hello_as(Credentials::loopback()).ok());

  const auto end_job_as = [&](std::optional<TaskId> task) {
    Channel channel({.address = port.address(),
                     .task = "/job:worker/task:0",
                     .credentials = value_or_throw(Credentials::from_folder(folder.path(), task))});
    return end_job(channel, "test", after(seconds(10))).status();
  };
  EXPECT_EQ(error_code(end_job_as(TaskId{"worker", 0})), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(end_job_as(TaskId{"chief", 0}).ok());
}

TEST(Server, RejectsCertificatesOfAnotherTask) {
  const TemporaryFolder folder;
  const ClusterSpec spec{{"worker", {"127.0.0.1:2222", "127.0.0.1:2223"}}};
  throw_if_error(write_certificates(folder.path(), spec).status());
  EXPECT_THAT(
      error_text([&] { Server server(spec, "worker", 1, {.certs = folder.path() + "/worker-0"}); }),
      HasSubstr("is that of /job:worker/task:0; this process is /job:worker/task:1"));
  EXPECT_THAT(error_text([&] {
                Server server(spec, "worker", 1, {.certs = folder.path(), .insecure = true});
              }),
              HasSubstr("use one of the two"));
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

TEST(InProcessCluster, ServesAGivenSpec) {
  const PortReservation port = value_or_throw(PortReservation::make());
  InProcessCluster cluster(
      {.spec = {{"worker", {"127.0.0.1:0", "127.0.0.1:0"}}, {"ps", {port.address()}}}});
  EXPECT_EQ(cluster.spec().address({"ps", 0}), port.address());
  ASSERT_EQ(cluster.spec().num_tasks("worker"), 2);
  cluster.spec().check_ports();
  for (const TaskId& task : cluster.spec().all_tasks()) {
    EXPECT_EQ(value_or_throw(hello(cluster.spec(), task)).task, task.to_string());
  }
}

TEST(InProcessCluster, RestartsATaskWithANewIncarnation) {
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

TEST(InProcessCluster, StartsAndStopsRepeatedly) {
  // A longer run is in start_stop_test, which .ci/full repeats a hundred times.
  for (int i = 0; i < 5; ++i) {
    InProcessCluster cluster({.workers = 3, .ps = 2});
    EXPECT_TRUE(hello(cluster.spec(), {"ps", 1}).ok()) << i;
  }
}

TEST(InProcessCluster, RejectsAClusterWithoutTasks) {
  EXPECT_EQ(error_text([] { InProcessCluster cluster({.workers = 0}); }),
            "cannot start an in-process cluster of 0 workers and 0 ps; it needs at least one task");
}

}  // namespace
}  // namespace trireme
