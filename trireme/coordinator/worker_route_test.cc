// A worker that cannot reach one of the parameter servers leaves its closures to others, and is
// used again once its route is healed. Here its route to that server leads through a proxy.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "trireme/base/status.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/runtime/server_service.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/tcp_proxy.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using torch::Tensor;

class WorkerRouteTest : public testing::Test {
 protected:
  // Starts worker 1, whose second parameter server is the proxy.
  WorkerRouteTest()
      : worker_(value_or_throw(
            TaskServer::start({.spec = spec({0, 1}, proxy_.address()),
                               .task = {"worker", 1},
                               .services = {make_server_service, make_closure_service}}))) {}

  // Returns the spec of a cluster with these workers.
  ClusterSpec spec(const std::vector<int>& workers, const std::string& second_server) const {
    std::map<int, std::string> addresses;
    for (int worker : workers) {
      addresses[worker] = worker == 0 ? cluster_.spec().address({"worker", 0}) : port_.address();
    }
    return ClusterSpec{{"worker", addresses},
                       {"ps", {cluster_.spec().address({"ps", 0}), second_server}}};
  }
  ClusterSpec spec(const std::vector<int>& workers) const {
    return spec(workers, cluster_.spec().address({"ps", 1}));
  }
  void cut() {
    proxy_.set_cut(1);  // Every connection breaks at its first byte.
    proxy_.cut_all();
  }
  void heal() { proxy_.set_cut(0); }

  static uint64_t closures_done(const ClusterCoordinator& coordinator, int worker) {
    for (const WorkerState& state : coordinator.workers()) {
      if (state.task.index == worker) return state.closures_done;
    }
    return 0;
  }

  InProcessTestCluster cluster_{{.workers = 1, .ps = 2}};
  TcpProxy proxy_{cluster_.spec().address({"ps", 1})};
  const PortReservation port_ = value_or_throw(PortReservation::make());
  const std::unique_ptr<TaskServer> worker_;
};

TEST_F(WorkerRouteTest, AWorkerWithoutARouteToOneServerLeavesItsClosuresToOthers) {
  const ParameterServerStrategy strategy{Cluster(spec({0, 1}))};
  const auto scope = strategy.scope();
  const Variable first("first", torch::zeros({})), second("second", torch::zeros({}));
  // Reads what it changes, so that its closures take turns on a worker.
  const auto count = function("count", [&] {
    const Tensor one = torch::ones({}) + 0 * (first.read() + second.read());
    first.assign_add(one);
    second.assign_add(one);
  });
  ClusterCoordinator coordinator(strategy);
  int scheduled = 0;
  const auto wait_until_used = [&](int worker) {
    const uint64_t before = closures_done(coordinator, worker);
    const auto used = [&] {
      coordinator.schedule(count);
      coordinator.join(seconds(60));
      ++scheduled;
      return closures_done(coordinator, worker) > before;
    };
    EXPECT_TRUE(wait_until(used, seconds(60))) << "worker " << worker;
  };
  for (int worker : {0, 1}) wait_until_used(worker);

  cut();
  for (int i = 0; i < 300; ++i) coordinator.schedule(count);
  scheduled += 300;
  // Closures that fail one after the other, or again and again on the same worker, take minutes.
  coordinator.join(seconds(60));
  EXPECT_EQ(first.read().item<float>(), scheduled);
  EXPECT_EQ(second.read().item<float>(), scheduled);

  heal();
  wait_until_used(1);
  EXPECT_EQ(first.read().item<float>(), scheduled);
  EXPECT_EQ(second.read().item<float>(), scheduled);
}

TEST_F(WorkerRouteTest, ClosuresWaitForTheOnlyWorker) {
  const ParameterServerStrategy strategy{Cluster(spec({1}))};
  const auto scope = strategy.scope();
  const Variable first("first", torch::zeros({})), second("second", torch::zeros({}));
  const auto count = function("count", [&] {
    first.assign_add(torch::ones({}));
    second.assign_add(torch::ones({}));
  });
  ClusterCoordinator coordinator(strategy);
  coordinator.schedule(count);
  coordinator.join(seconds(60));
  cut();
  for (int i = 0; i < 20; ++i) coordinator.schedule(count);
  EXPECT_EQ(error_of([&] { coordinator.join(seconds(4)); }).code(), ErrorCode::kDeadlineExceeded);
  heal();
  coordinator.join(seconds(60));
  EXPECT_EQ(first.read().item<float>(), 21);
  EXPECT_EQ(second.read().item<float>(), 21);
}

}  // namespace
}  // namespace trireme
