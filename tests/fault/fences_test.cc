// After join() or an error has returned, no older update is applied on any server: not by a worker
// that is cut off from the coordinator but not from the servers, not by a worker that was frozen,
// not from the socket of a server that was frozen, and not by the workers of a coordinator that was
// killed. TRIREME_FULL=1 also cuts each direction of a connection alone.
//
// Every test waits until the late update has arrived: a server counts the updates that it rejects.
// Then it ends the fault, waits until the worker is used again, and reads the variables once more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "tests/fault/client_process.h"
#include "tests/fault/network_cuts.h"
#include "tests/fault/network_job.h"
#include "trireme/ps/variable_list.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;

// Time limit of an error that waits until a worker is lost and until a lease of 3 s has run out.
constexpr auto kErrorLimit = seconds(15);

class Fences : public NetworkJob {
 protected:
  void start(const std::vector<const Step*>& steps) {
    fail_.graph(torch::tensor({1}));
    start_coordinator(steps);
  }

  // Schedules a closure and returns the worker that has received it.
  int schedule_on_a_worker(const ClosureOptions& options, const Step& step) {
    const std::vector<uint64_t> before = {runs(0), runs(1)};
    coordinator_->schedule(options, step, work_);
    int found = 0;
    const auto received = [&] {
      for (int i = 0; i < 2; ++i) {
        found = i;
        if (runs(i) > before[i]) return true;
      }
      return false;
    };
    EXPECT_TRUE(wait_until(received, seconds(20)));
    return found;
  }
  // Returns the number of batches that a worker has received.
  uint64_t runs(int index) {
    return cluster_->describe(worker(index)).counters.at("rpc_server/trireme.Closures/Run/calls");
  }
  // Returns the number of pushes that a server has rejected because they came too late.
  uint64_t rejected(const TaskId& server) {
    return cluster_->describe(server).counters.at("ps/pushes_already_decided");
  }
  uint64_t rejected() { return rejected(ps(0)) + rejected(ps(1)); }

  // Cuts the worker off from the coordinator.
  void cut_off(int index, const NetworkCut& cut = kCutBothWays) {
    cut.apply(*network_, network_->test_host(), host(worker(index)));
  }
  // Lets a closure fail on the worker that is left, and blocks until its error is raised.
  void raise_error() {
    const Time begin = Clock::real().now();
    coordinator_->schedule(fail_, torch::tensor({70}));
    const Error error = error_of([&] { coordinator_->join(seconds(60)); });
    EXPECT_THAT(error.what(), HasSubstr("function 'fail'"));
    EXPECT_LT(Clock::real().now() - begin, kErrorLimit);
  }
  // Waits until a late update has been rejected, and checks that the variables are as before.
  void expect_rejected(uint64_t before, const std::vector<int64_t>& counts) {
    wait_until([&] { return rejected() > before || read_counts() != counts; }, seconds(30));
    EXPECT_EQ(read_counts(), counts);
    EXPECT_GT(rejected(), before) << "no late update was rejected";
  }
  // Ends the partitions, waits until the worker is used again, and reads the variables once more.
  void expect_nothing_late(int index, const std::vector<int64_t>& counts) {
    network_->heal();
    scheduled_ = 0;
    wait_until_used(index, add_);
    coordinator_->join(seconds(60));
    expect_counts(counts, scheduled_);
  }

  // Computes for about a second before it pushes, which leaves time to inject a fault.
  const Step slow_add_ = make_add("slow_add", 2000);
  const Step fail_ = function("fail", std::function<Tensor(const Tensor&)>([](const Tensor& ids) {
                                return torch::arange(10).index_select(0, ids);
                              }),
                              {.check_capture = false});
};

class CutOffWorker : public Fences, public testing::WithParamInterface<NetworkCut> {};

INSTANTIATE_TEST_SUITE_P(Cuts, CutOffWorker, testing::ValuesIn(network_cuts()), name_of_cut);

TEST_P(CutOffWorker, AppliesNothingAfterTheErrorWasRaised) {
  start({&add_});
  const std::vector<int64_t> begun = read_counts();
  // Pushes all the time, for minutes.
  const int victim = schedule_on_a_worker({.repeat = 1 << 20}, add_);
  EXPECT_TRUE(wait_until([&] { return read_counts() != begun; }, seconds(20)));
  const uint64_t before = rejected();
  cut_off(victim, GetParam());
  raise_error();
  const std::vector<int64_t> counts = read_counts();
  // A worker that hears the coordinator is told to stop, and may push nothing late.
  if (GetParam().there) expect_rejected(before, counts);
  expect_nothing_late(victim, counts);
}

// The closure is requeued and runs on the other worker, so join() returns without an error while
// the first worker is in mid-closure.
TEST_F(Fences, AFrozenWorkersUpdateIsRejectedAfterJoin) {
  start({&add_, &slow_add_});
  std::vector<int64_t> counts = read_counts();
  const uint64_t before = rejected();
  const int victim = schedule_on_a_worker({}, slow_add_);
  cluster_->freeze(worker(victim));
  cut_off(victim);
  coordinator_->join(seconds(60));
  for (int64_t& count : counts) ++count;
  EXPECT_EQ(read_counts(), counts);
  EXPECT_EQ(state_of(victim).losses, 1u);
  cluster_->thaw(worker(victim));
  expect_rejected(before, counts);
  expect_nothing_late(victim, counts);
}

TEST_F(Fences, AFrozenWorkersUpdateIsRejectedAfterTheError) {
  start({&add_, &slow_add_});
  const std::vector<int64_t> counts = read_counts();
  const uint64_t before = rejected();
  const int victim = schedule_on_a_worker({}, slow_add_);
  cluster_->freeze(worker(victim));
  cut_off(victim);
  raise_error();
  EXPECT_EQ(read_counts(), counts) << "the worker was frozen after it had pushed";
  cluster_->thaw(worker(victim));
  expect_rejected(before, counts);
  expect_nothing_late(victim, counts);
}

// The update waits in the socket of the server, and so do renewals of the coordinator's lease. The
// error does not wait for the server's answer, but until the lease there has run out.
TEST_F(Fences, AFrozenServerRejectsUpdatesThatWaitedInItsSocket) {
  start({&add_, &slow_add_});
  std::vector<int64_t> counts = read_counts();
  const uint64_t before = rejected(ps(1));
  const int victim = schedule_on_a_worker({}, slow_add_);
  cluster_->freeze(ps(1));
  cut_off(victim);
  // The other server shows that the worker has pushed.
  EXPECT_TRUE(wait_until([&] { return counts_[0].read().item<int64_t>() > counts[0]; }, kLimit));
  ++counts[0];
  raise_error();
  cluster_->thaw(ps(1));
  EXPECT_TRUE(wait_until([&] { return rejected(ps(1)) > before; }, seconds(30)))
      << "no late update was rejected";
  EXPECT_EQ(read_counts(), counts);
  expect_nothing_late(victim, counts);
}

// The workers do not notice that their coordinator is gone, and push on. Its lease ends that.
TEST_F(Fences, TheWorkersOfAKilledCoordinatorAreFencedByItsLease) {
  std::vector<std::unique_ptr<Channel>> channels;
  for (int i = 0; i < 2; ++i) {
    channels.push_back(std::make_unique<Channel>(ChannelOptions{
        .address = cluster_->spec().address(ps(i)), .credentials = cluster_->credentials()}));
  }
  // Returns the number of updates of each server's shard, whichever job has made them.
  const auto updates = [&] {
    std::vector<int64_t> counts;
    for (const auto& channel : channels) {
      int64_t& sum = counts.emplace_back(0);
      for (const auto& entry : value_or_throw(list_variables(*channel, after(kLimit))).variables) {
        sum += static_cast<int64_t>(entry.updates);
      }
    }
    return counts;
  };
  ClientProcessOptions options{.job = "ads",
                               .closures = 1,
                               .repeat = 1 << 20,
                               .certs = folder_.path(),
                               .network = &*network_,
                               .host = network_->add_host()};
  std::optional<ClientProcess> client(std::in_place, cluster_->spec(), options);
  EXPECT_EQ(client->begin(), (std::vector<int64_t>{0, 0}));
  EXPECT_TRUE(wait_until([&] { return updates()[0] > 100; }, seconds(30))) << client->text();
  const uint64_t before = rejected();
  for (int i = 0; i < 2; ++i) network_->partition(options.host, host(worker(i)));
  client->kill();
  const std::vector<int64_t> at_its_death = updates();
  EXPECT_TRUE(wait_until([&] { return rejected() > before; }, kErrorLimit));
  const std::vector<int64_t> counts = updates();
  EXPECT_GT(counts[0], at_its_death[0]) << "the worker stopped by itself";
  network_->heal();
  options.resume = true;
  options.closures = 100;
  options.repeat = 1;
  client.emplace(cluster_->spec(), options);
  const std::vector<int64_t> begin = client->begin();
  ASSERT_EQ(begin.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_GE(begin[i], counts[i]);
    // One server may have applied its half of the push that the other one rejected.
    EXPECT_LE(begin[i], counts[i] + 1);
  }
  EXPECT_EQ(client->end(), (std::vector<int64_t>{begin[0] + 100, begin[1] + 100}));
}

}  // namespace
}  // namespace trireme
