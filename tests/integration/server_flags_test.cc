// The flags of `trireme server` do what its help says: where a real server listens, how much memory
// its variables may take, and when it exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/commands.h"
#include "trireme/ps/ps_client.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/server_service.h"

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

}  // namespace
}  // namespace trireme
