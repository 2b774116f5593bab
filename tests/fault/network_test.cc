// Tasks keep running while the network between them is partitioned, cut or slow, and are reachable
// again once it heals; no task that answers is declared lost. Each task runs with certificates on a
// host of its own, which is a network namespace.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/types.h>
#include <unistd.h>

#include <thread>

#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/variable.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/runtime/cluster_status.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

const TaskId kPs = {"ps", 0};
const TaskId kWorker = {"worker", 0};

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status status = Network::enter(); !status.ok()) {
      GTEST_SKIP() << "there are no network namespaces here: " << describe(status);
    }
    network_.emplace();
  }

  std::optional<Network> network_;
};

// A UDP socket on a host of the network.
class Datagrams {
 public:
  Datagrams(Network& network, const std::string& host) {
    network.in_host(host, [&] { socket_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
    address_.sin_family = AF_INET;
    inet_pton(AF_INET, host.c_str(), &address_.sin_addr);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address_), &size), 0);
  }
  ~Datagrams() { close(socket_); }

  void send(const std::string& text, const Datagrams& to) {
    EXPECT_EQ(sendto(socket_, text.data(), text.size(), 0,
                     reinterpret_cast<const sockaddr*>(&to.address_), sizeof(to.address_)),
              static_cast<ssize_t>(text.size()));
  }
  // Returns the next datagram.
  std::string receive() {
    pollfd event = {socket_, POLLIN, 0};
    if (poll(&event, 1, 10'000) != 1) return "nothing within ten seconds";
    char bytes[64];
    return std::string(bytes, recv(socket_, bytes, sizeof(bytes), 0));
  }

 private:
  int socket_ = -1;
  sockaddr_in address_ = {};
};

TEST_F(NetworkTest, BlocksOneDirectionOnly) {
  const std::string here = network_->add_host(), there = network_->add_host();
  Datagrams one(*network_, here), other(*network_, there);
  one.send("before", other);
  EXPECT_EQ(other.receive(), "before");
  network_->block(here, there);
  one.send("lost", other);
  other.send("back", one);
  EXPECT_EQ(one.receive(), "back");
  network_->heal();
  one.send("after", other);
  EXPECT_EQ(other.receive(), "after");
  EXPECT_THROW(network_->block(here, "10.1.2.3"), Error);
}

class NetworkClusterTest : public NetworkTest {
 protected:
  void start(bool proxies) {
    cluster_.emplace(ProcessClusterOptions{
        {.workers = 2, .ps = 1}, {}, folder_.path(), {}, &*network_, proxies});
  }

  // Returns how many tasks answer this process.
  int answering() {
    int count = 0;
    for (const auto& [task, answer] : describe_cluster(
             cluster_->spec(),
             {.deadline = after(seconds(3)), .credentials = cluster_->credentials()})) {
      count += answer.ok();
    }
    return count;
  }
  // Returns what `trireme status` prints when it runs on `host`.
  std::string status_on(const std::string& host) {
    return value_or_throw(
               run_process(
                   {.argv = network_->on_host(host, {trireme_binary(), "status", "--timeout", "3",
                                                     "--certs", folder_.path()}),
                    .environment = {{"TF_CONFIG", cluster_->tf_config({"chief", 0})}}},
                   after(seconds(30))))
        .stdout_text;
  }

  TemporaryFolder folder_;
  std::optional<ProcessCluster> cluster_;
};

TEST_F(NetworkClusterTest, EveryTaskIsOnAHostOfItsOwn) {
  start(false);
  EXPECT_EQ(answering(), 3);
  EXPECT_NE(cluster_->host(kPs), cluster_->host(kWorker));
  const CompletedProcess listening = value_or_throw(run_process(
      {.argv = network_->on_host(cluster_->host(kPs), {"ss", "-ltnH"})}, after(seconds(20))));
  EXPECT_EQ(std::count(listening.stdout_text.begin(), listening.stdout_text.end(), '\n'), 1)
      << listening.stdout_text;
  EXPECT_THAT(listening.stdout_text, HasSubstr(cluster_->host(kPs)));
}

TEST_F(NetworkClusterTest, APartitionHidesATaskFromOneSideOnlyAndHeals) {
  start(false);
  const std::string ps = cluster_->host(kPs), test = network_->test_host();
  const uint64_t before = cluster_->describe(kPs).incarnation;
  const std::vector<std::function<void()>> partitions = {
      [&] { network_->partition(test, ps); },
      [&] { network_->block(test, ps); },
      [&] { network_->block(ps, test); },
  };
  for (const auto& partition : partitions) {
    partition();
    EXPECT_EQ(answering(), 2);
    EXPECT_THAT(status_on(cluster_->host(kWorker)), HasSubstr("3 of 3 tasks answer"));
    EXPECT_TRUE(cluster_->is_running(kPs));
    network_->heal();
    cluster_->wait_until_up(kPs, after(seconds(10)));
    EXPECT_EQ(cluster_->describe(kPs).incarnation, before);
  }
}

TEST_F(NetworkClusterTest, TasksThatCannotReachEachOtherAnswerOthers) {
  start(false);
  network_->partition(cluster_->host(kWorker), cluster_->host(kPs));
  EXPECT_EQ(answering(), 3);
  EXPECT_THAT(status_on(cluster_->host(kWorker)), HasSubstr("missing: /job:ps/task:0"));
  EXPECT_THAT(status_on(cluster_->host(kPs)), HasSubstr("missing: /job:worker/task:0"));
}

TEST_F(NetworkClusterTest, AProxyDelaysAndCuts) {
  start(true);
  EXPECT_EQ(answering(), 3);
  cluster_->proxy(kPs).set_delay(milliseconds(100), milliseconds(150));
  const Time began = Clock::real().now();
  cluster_->describe(kPs);
  EXPECT_GE(Clock::real().now() - began, milliseconds(200));  // both directions
  cluster_->proxy(kPs).set_delay({}, {});
  cluster_->proxy(kPs).set_cut(1);
  EXPECT_EQ(answering(), 2);
  cluster_->proxy(kPs).set_cut(0);
  cluster_->wait_until_up(kPs, after(seconds(10)));
  // A killed task comes back behind its proxy.
  cluster_->restart(kWorker);
  EXPECT_EQ(answering(), 3);
}

// TCP turns lost packets into delay, so the test injects delay only.
TEST_F(NetworkClusterTest, ASlowNetworkDelaysClosuresAndLosesNoWorker) {
  start(true);
  ParameterServerStrategy strategy(Cluster(cluster_->spec()), {.certs = folder_.path()});
  const auto scope = strategy.scope();
  const Variable count("count", torch::zeros({}, torch::kInt64));
  ClusterCoordinator coordinator(strategy);
  const auto add = function(
      "add", std::function<void()>([&] { count.assign_add(torch::ones({}, torch::kInt64)); }));
  coordinator.fetch(coordinator.schedule(add));
  for (const TaskId& task : cluster_->spec().all_tasks()) {
    cluster_->proxy(task).set_delay(milliseconds(50), milliseconds(500));
  }
  constexpr int kClosures = 500;
  const Time limit = after(seconds(90));
  for (int i = 1; i < kClosures; ++i) coordinator.schedule(add);
  while (!coordinator.done() && Clock::real().now() < limit) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  ASSERT_TRUE(coordinator.done());
  EXPECT_EQ(count.read().item<int64_t>(), kClosures);
  for (const WorkerState& worker : coordinator.workers()) {
    EXPECT_TRUE(worker.up);
    EXPECT_EQ(worker.losses, 0u) << worker.task;
    EXPECT_GT(worker.closures_done, 0u) << worker.task;
  }
}

}  // namespace
}  // namespace trireme
