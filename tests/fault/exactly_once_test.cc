// A call with retries takes effect exactly once, although calls are lost, duplicated, delayed and
// reordered and connections break. TRIREME_SEEDS sets the number of seeds, TRIREME_INCREMENTS the
// number of increments for each.
//
// The service answers each increment with the sum after it. If every increment is applied once, the
// answers are the numbers from 1 to kIncrements, each of them once.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <semaphore>

#include "trireme/base/status.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/fault_injector.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/counter_service.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/tcp_proxy.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

const int64_t kSeeds = setting("TRIREME_SEEDS", 2);
const int64_t kIncrements = setting("TRIREME_INCREMENTS", 100000);
constexpr int kInFlight = 512;

struct Counted {
  int64_t value = 0;
  int failed = 0;
  int doubled = 0;  // answers out of range, or given to two increments
};

// Sends kIncrements increments, kInFlight at a time, and returns once all are answered.
Counted increment(Channel& channel, const CounterService& service) {
  const RetryPolicy retry = {.attempt_time = milliseconds(250),
                             .first_delay = milliseconds(5),
                             .longest_delay = milliseconds(200)};
  std::counting_semaphore<> slots(kInFlight);
  std::atomic<int> failed = 0;
  std::vector<std::atomic<bool>> answers(kIncrements + 1);
  std::atomic<int> doubled = 0;
  for (int i = 0; i < kIncrements; ++i) {
    slots.acquire();
    channel.call(CounterService::kAdd, CounterService::number(1),
                 {.deadline = after(minutes(5)), .retry = retry}, [&](Response response) {
                   if (!response.ok()) {
                     if (++failed == 1) ADD_FAILURE() << describe(response.status());
                   } else {
                     const int64_t sum = CounterService::number(*response);
                     if (sum < 1 || sum > kIncrements || answers[sum].exchange(true)) ++doubled;
                   }
                   slots.release();
                 });
  }
  for (int i = 0; i < kInFlight; ++i) slots.acquire();
  return {service.value(), failed, doubled};
}

class ExactlyOnce : public testing::TestWithParam<int> {
 protected:
  ExactlyOnce() {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<CounterService>());
    service_ = static_cast<CounterService*>(services.back().get());
    server_ = value_or_throw(
        RpcServer::start({.address = "127.0.0.1:0", .task = "/job:ps/task:0", .incarnation = 7},
                         std::move(services)));
  }

  std::shared_ptr<FaultInjector> faults() const {
    return std::make_shared<FaultInjector>(GetParam(),
                                           std::vector<FaultRule>{{.method = CounterService::kAdd,
                                                                   .lose_request = 0.1,
                                                                   .lose_response = 0.1,
                                                                   .duplicate = 0.1,
                                                                   .delay = 0.1,
                                                                   .reorder = 0.1,
                                                                   .cut = 0.1}});
  }

  void check(const std::string& address) {
    const auto injector = faults();
    Channel channel({.address = address, .task = "/job:ps/task:0", .faults = injector});
    throw_if_error(connect_all({&channel}, after(seconds(30))).status());
    const Counted counted = increment(channel, *service_);
    EXPECT_EQ(counted.failed, 0);
    EXPECT_EQ(counted.doubled, 0);
    EXPECT_EQ(counted.value, kIncrements);
    EXPECT_GT(injector->injected(), kIncrements * 0.4) << "the faults did not happen";
  }

  CounterService* service_ = nullptr;
  std::unique_ptr<RpcServer> server_;
};

TEST_P(ExactlyOnce, UnderInjectedFaults) {
  check(server_->address());
}

TEST_P(ExactlyOnce, UnderInjectedFaultsAndBrokenConnections) {
  TcpProxy proxy(server_->address(), GetParam());
  proxy.set_cut(0.001);
  check(proxy.address());
  EXPECT_GT(proxy.cuts(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExactlyOnce, testing::Range<int>(1, static_cast<int>(kSeeds) + 1));

}  // namespace
}  // namespace trireme
