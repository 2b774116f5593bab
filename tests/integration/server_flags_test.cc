// The flags of `trireme server` do what its help says: where a real server listens, how much memory
// its variables may take, which files it reads, and when it exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/commands.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/data/dataset.h"
#include "trireme/data/text.h"
#include "trireme/ps/ps_client.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/runtime/server_service.h"
#include "trireme/strategy/parameter_server_strategy.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ServerFlagsTest : public testing::Test {
 protected:
  RunningCommand& serve(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "server");
    server_ = std::make_unique<RunningCommand>(
        trireme_command(flags, absl::StrCat("{\"cluster\": {\"ps\": [\"", port_.address(),
                                            "\"]}, \"task\": {\"type\": \"ps\", \"index\": 0}}")));
    return *server_;
  }

  // Returns the addresses on which the server listens, as `ss` reports them.
  std::vector<std::string> listening() {
    const std::string pid = absl::StrCat("pid=", server_->process().pid(), ",");
    std::vector<std::string> found;
    std::istringstream lines(
        value_or_throw(run_process({.argv = {"ss", "-ltnpH"}}, after(kLimit))).stdout_text);
    for (std::string line; std::getline(lines, line);) {
      if (line.find(pid) == std::string::npos) continue;
      std::istringstream words(line);
      std::string state, queued, most, address;
      words >> state >> queued >> most >> address;
      // gRPC uses IPv6 sockets where IPv6 is available.
      found.push_back(std::regex_replace(address, std::regex("^\\[::ffff:(.*)\\]"), "$1"));
    }
    return found;
  }

  std::string colon_port() const { return port_.address().substr(port_.address().rfind(':')); }

  bool end_the_job() {
    Channel channel({.address = port_.address(), .task = "/job:ps/task:0"});
    return value_or_throw(end_job(channel, "a test", after(kLimit)));
  }

  PortReservation port_ = value_or_throw(PortReservation::make());
  std::unique_ptr<RunningCommand> server_;
};

TEST_F(ServerFlagsTest, ByDefaultItListensOnLoopbackOnly) {
  serve({}).wait_for(" serves at ");
  EXPECT_THAT(listening(), ElementsAre(port_.address()));
}

TEST_F(ServerFlagsTest, BindSetsTheListeningAddress) {
  serve({"--bind", "127.0.0.2"}).wait_for(" serves at ");
  EXPECT_THAT(listening(), ElementsAre("127.0.0.2" + colon_port()));
  EXPECT_EQ(run_trireme({"status", "--target", "127.0.0.2" + colon_port()}).status.code, 0);
  EXPECT_EQ(run_trireme({"status", "--target", port_.address()}).status.code, 1);
}

TEST_F(ServerFlagsTest, RejectsAPublicBindWithoutCertificates) {
  EXPECT_EQ(serve({"--bind", "0.0.0.0"}).wait().code, 2) << server_->text();
  EXPECT_THAT(server_->text(), HasSubstr("/job:ps/task:0: refused to listen on 0.0.0.0:"));
}

TEST_F(ServerFlagsTest, InsecureAllowsAPublicBindAndWarns) {
  serve({"--bind", "0.0.0.0", "--insecure"}).wait_for(" serves at ");
  EXPECT_THAT(server_->text(), HasSubstr("anyone who can reach this port controls the server"));
  EXPECT_THAT(listening(), ElementsAre(testing::AnyOf("0.0.0.0" + colon_port(), "*" + colon_port(),
                                                      "[::]" + colon_port())));
}

TEST_F(ServerFlagsTest, RejectsInsecureTogetherWithCertificates) {
  EXPECT_EQ(serve({"--insecure", "--certs", "certs"}).wait().code, 2) << server_->text();
  EXPECT_THAT(server_->text(), HasSubstr("use one of the two"));
}

TEST_F(ServerFlagsTest, MemoryLimitBoundsItsVariables) {
  serve({"--memory-limit", "1MiB"}).wait_for(" serves at ");
  const ClusterSpec spec(std::map<std::string, TaskAddresses>{{"ps", {port_.address()}}});
  const auto client = value_or_throw(PsClient::connect({.spec = spec}, after(kLimit)));
  ShardPlacer placer(1, Placement::kRoundRobin);
  const auto made = client->create({{.layout = placer.place({{"table", {1024, 512}}})[0]}});
  EXPECT_EQ(error_code(made.status()), ErrorCode::kResourceExhausted);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("of the limit of 1048576 bytes"));
  EXPECT_TRUE(client->create({{.layout = placer.place({{"bias", {512}}})[0]}}).ok());
}

TEST_F(ServerFlagsTest, RejectsAMemoryLimitThatIsNotASize) {
  EXPECT_EQ(serve({"--memory-limit", "much"}).wait().code, 2) << server_->text();
  EXPECT_THAT(server_->text(), HasSubstr("--memory-limit"));
}

TEST_F(ServerFlagsTest, ExitWithJobEndsTheServerWithItsJob) {
  serve({"--exit-with-job"}).wait_for(" serves at ");
  EXPECT_TRUE(end_the_job());
  EXPECT_EQ(server_->wait(), ExitStatus{}) << server_->text();
  EXPECT_THAT(server_->text(), HasSubstr("/job:ps/task:0 has stopped"));
}

TEST_F(ServerFlagsTest, WithoutExitWithJobServesTheNextJob) {
  serve({}).wait_for(" serves at ");
  EXPECT_FALSE(end_the_job());
  EXPECT_EQ(run_trireme({"status", "--target", port_.address()}).status.code, 0);
  EXPECT_TRUE(server_->process().is_running());
}

// Returns the first line of a file as a worker of the cluster reads it.
std::string line_on_worker(const ProcessCluster& cluster, const std::string& file) {
  const ParameterServerStrategy strategy{Cluster(cluster.spec())};
  ClusterCoordinator coordinator(strategy);
  const auto lines = coordinator.create_per_worker_dataset(Dataset::text_lines(file));
  auto read = function("read", [](Iterator& iterator) { return iterator.next().clone(); });
  const RemoteValue line = coordinator.schedule(read, lines.iterator());
  coordinator.join();
  return text_of(coordinator.fetch(line));
}

TEST(DataRootFlag, LetsWorkersReadFilesInsideOfTheFolder) {
  const TemporaryFolder folder, other;
  folder.write("ships.txt", "trireme\n");
  other.write("secret.txt", "secret\n");
  std::filesystem::create_symlink(other.path() + "/secret.txt", folder.path() + "/link.txt");
  const ProcessCluster cluster({{.workers = 1, .ps = 1}, {"--data-root", folder.path()}});
  EXPECT_EQ(line_on_worker(cluster, folder.path() + "/ships.txt"), "trireme");
  EXPECT_EQ(line_on_worker(cluster, "ships.txt"), "trireme") << "relative to the data root";
  for (const std::string& name : {other.path() + "/secret.txt", folder.path() + "/link.txt"}) {
    const Error error = error_of([&] { line_on_worker(cluster, name); });
    EXPECT_EQ(error.code(), ErrorCode::kPermissionDenied) << error.what();
    EXPECT_EQ(error.origin().task, "/job:worker/task:0");
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(name), HasSubstr(folder.path()),
                                             HasSubstr("--data-root")));
  }
}

TEST(DataRootFlag, WithoutItWorkersReadNoFiles) {
  const TemporaryFolder folder;
  folder.write("ships.txt", "trireme\n");
  const ProcessCluster cluster({{.workers = 1, .ps = 1}});
  const Error error = error_of([&] { line_on_worker(cluster, folder.path() + "/ships.txt"); });
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("start it with --data-root DIR"));
}

}  // namespace
}  // namespace trireme
