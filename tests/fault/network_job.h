#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/network_fixture.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/testing/wait_until.h"

namespace trireme {

// A coordinator on the test's host, whose closures add 1 to a variable on each server. A count that
// is too low shows a lost closure, and one that is too high an update that was applied twice or too
// late.
class NetworkJob : public NetworkFixture {
 protected:
  using Step = Function<torch::Tensor(const torch::Tensor&)>;

  static TaskId worker(int index) { return {"worker", index}; }
  static TaskId ps(int index) { return {"ps", index}; }
  std::string host(const TaskId& task) const { return cluster_->host(task); }

  // Makes the coordinator, and waits until both workers have run each of the functions, so that
  // they need nothing else for the next closure.
  void start_coordinator(const std::vector<const Step*>& steps) {
    work_ = torch::ones({200, 200});
    strategy_.emplace(Cluster(cluster_->spec()),
                      ParameterServerStrategyOptions{.certs = folder_.path()});
    const auto scope = strategy_->scope();
    for (int i = 0; i < 2; ++i) {
      counts_.emplace_back(absl::StrCat("count", i), torch::zeros({}, torch::kInt64));
    }
    coordinator_.emplace(*strategy_);
    for (const Step* step : steps) {
      for (int i = 0; i < 2; ++i) wait_until_used(i, *step);
    }
    coordinator_->join(std::chrono::seconds(60));
  }

  WorkerState state_of(int index) const {
    for (const WorkerState& state : coordinator_->workers()) {
      if (state.task == worker(index)) return state;
    }
    return {};
  }
  void schedule(int closures) {
    for (int i = 0; i < closures; ++i) coordinator_->schedule(add_, work_);
    scheduled_ += closures;
  }
  bool done_within(Duration timeout) {
    return wait_until([this] { return coordinator_->done(); }, timeout);
  }
  // Schedules closures, one at a time, until the worker has finished one more.
  void wait_until_used(int index, const Step& step) {
    const uint64_t before = state_of(index).closures_done;
    const auto used = [&] {
      coordinator_->fetch(coordinator_->schedule(step, work_));
      ++scheduled_;
      return state_of(index).closures_done > before;
    };
    EXPECT_TRUE(wait_until(used, std::chrono::seconds(60))) << worker(index);
  }

  std::vector<int64_t> read_counts() const {
    std::vector<int64_t> counts;
    for (const Variable& count : counts_) counts.push_back(count.read().item<int64_t>());
    return counts;
  }
  // Checks that nothing but closures that were scheduled since has changed the variables.
  void expect_counts(std::vector<int64_t> before, int64_t scheduled) const {
    for (int64_t& count : before) count += scheduled;
    EXPECT_EQ(read_counts(), before);
  }

  // Returns a function that adds 1 to each count and multiplies matrices as often as `products`
  // says. The worker pushes after the last product.
  Step make_add(const char* name, int products) {
    return function(name,
                    std::function<torch::Tensor(const torch::Tensor&)>(
                        [this, products](const torch::Tensor& x) {
                          for (const Variable& count : counts_) {
                            count.assign_add(torch::ones({}, torch::kInt64));
                          }
                          torch::Tensor y = x;
                          for (int i = 0; i < products; ++i) y = y.matmul(x) / x.size(0);
                          return y.sum();
                        }),
                    {.check_capture = false});
  }

  std::optional<ParameterServerStrategy> strategy_;
  std::vector<Variable> counts_;
  torch::Tensor work_;
  const Step add_ = make_add("add", 1);
  std::optional<ClusterCoordinator> coordinator_;
  int64_t scheduled_ = 0;
};

}  // namespace trireme
