// The memory of real servers is bounded under load and does not grow however long the load lasts.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>

#include "trireme/base/machine.h"
#include "trireme/capture/device_scope.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using torch::Tensor;

constexpr int64_t kMiB = 1 << 20;
// An idle server holds less than this, LibTorch included.
constexpr int64_t kEmptyServer = 350 * kMiB;

TEST(Memory, QueuedStartsWaitAtTheClient) {
  ProcessCluster cluster({{.workers = 1, .ps = 0}, {"--threads", "1"}});
  const TaskId task{"worker", 0};
  Session session(cluster.target(task), {.timeout = std::chrono::minutes(5)});
  const auto step =
      function("step",
               [](const Tensor& x) {
                 Tensor sum = torch::zeros({});  // takes long, but needs no memory beside the input
                 for (int i = 0; i < 16; ++i) sum = sum + x.sum();
                 return sum;
               },
               {.check_capture = false});
  const Tensor x = torch::ones({8 << 20});  // 32 MiB
  session.run(step, x);
  std::deque<std::future<Tensor>> results;
  for (int i = 0; i < 150; ++i) results.push_back(session.start(step, x));
  for (auto& result : results) EXPECT_GT(result.get().item<float>(), 0);
  const int64_t highest = process_memory(cluster.pid(task)).peak;
  std::printf("150 starts of 32 MiB: the server held at most %.0f MiB\n", highest / 1048576.0);
  // The limit allows 512 MiB of inputs, and 2 MiB for each of 150 steps that wait.
  EXPECT_LT(highest, kEmptyServer + (512 + 300) * kMiB);
}

TEST(Memory, APipelineStaysFlat) {
  ProcessCluster cluster({{.workers = 2, .ps = 0}, {"--threads", "1"}});
  Session session(cluster.target({"worker", 0}));
  const auto step =
      function("step",
               [](const Tensor& x) {
                 Tensor a;
                 for (int stage = 0; stage < 8; ++stage) {
                   const DeviceScope on("/job:worker/task:" + std::to_string(stage % 2));
                   a = torch::tanh(stage == 0 ? torch::full({4 << 20}, 0.5) + x : a);  // 16 MiB
                 }
                 return a.sum();
               },
               {.check_capture = false});
  const auto run = [&](int steps) {
    std::deque<std::future<Tensor>> results;
    for (int i = 0; i < steps; ++i) {
      if (results.size() == 4) {
        results.front().get();
        results.pop_front();
      }
      results.push_back(session.start(step, torch::ones({})));
    }
    for (auto& result : results) result.get();
  };
  run(100);
  std::vector<int64_t> before;
  for (int task = 0; task < 2; ++task) {
    before.push_back(process_memory(cluster.pid({"worker", task})).peak);
  }
  run(180);
  for (int task = 0; task < 2; ++task) {
    const int64_t after = process_memory(cluster.pid({"worker", task})).peak;
    std::printf("worker %d: %.0f MiB after 100 steps, %.0f MiB after 280\n", task,
                before[task] / 1048576.0, after / 1048576.0);
    EXPECT_LT(after, before[task] + before[task] / 4);  // memory once grew by 1.4 GB in 100 steps
    EXPECT_LT(after, kEmptyServer + 1024 * kMiB);
  }
}

// Repeats one kind of work on a thread of its own until `ended` is true.
class Load {
 public:
  Load(const char* name, std::atomic<bool>& ended, std::function<void(int turn)> work)
      : name_(name), thread_([this, &ended, work = std::move(work)] {
          try {
            for (; !ended; ++turns_) work(turns_);
          } catch (const std::exception& error) {
            ADD_FAILURE() << name_ << ", turn " << turns_ << ": " << error.what();
          }
        }) {}
  int turns() const { return turns_; }
  ~Load() {
    thread_.join();
    std::printf("%s: %d turns\n", name_, turns_.load());
    EXPECT_GT(turns_, 0) << name_;
  }

 private:
  const char* const name_;
  std::atomic<int> turns_ = 0;
  std::thread thread_;
};

// The resident memory of processes over time, as the mean of the samples in each span. The peak
// would only show when different loads coincided. The median of a parameter server, which holds an
// update half of the time, would jump between two levels.
class Curve {
 public:
  explicit Curve(std::vector<std::pair<std::string, pid_t>> processes)
      : processes_(std::move(processes)), samples_(processes_.size()), means_(processes_.size()) {}

  void sample() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      samples_[i].push_back(process_memory(processes_[i].second).resident);
    }
  }

  void end_span(std::chrono::seconds since_start) {
    std::printf("%4lld s: mean, peak so far:", static_cast<long long>(since_start.count()));
    for (size_t i = 0; i < processes_.size(); ++i) {
      means_[i].push_back(std::accumulate(samples_[i].begin(), samples_[i].end(), 0.0) /
                          static_cast<double>(samples_[i].size()));
      samples_[i].clear();
      std::printf("  %s %.0f, %.0f MiB", processes_[i].first.c_str(), means_[i].back() / 1048576.0,
                  process_memory(processes_[i].second).peak / 1048576.0);
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  // Checks that no span after the first, which is the warm-up, exceeds the initial level by more
  // than the factor `allowed`. The initial level is the mean of the next three spans, because a
  // single span varies by almost as much as is allowed. A short run uses one span.
  void expect_flat(double allowed) const {
    for (size_t i = 0; i < processes_.size(); ++i) {
      const size_t baseline = means_[i].size() > 6 ? 3 : 1;
      ASSERT_GT(means_[i].size(), baseline + 1);
      const auto first = means_[i].begin() + 1;
      const double level = std::accumulate(first, first + baseline, 0.0) / baseline;
      const double highest = *std::max_element(first, means_[i].end());
      std::printf("%s: at first %.0f MiB, later at most %+.1f %%\n", processes_[i].first.c_str(),
                  level / 1048576.0, (highest / level - 1) * 100);
      EXPECT_LE(highest, level * allowed) << processes_[i].first;
    }
  }

 private:
  const std::vector<std::pair<std::string, pid_t>> processes_;
  std::vector<std::vector<int64_t>> samples_;
  std::vector<std::vector<double>> means_;
};

// Samples the curve five times a second, for the time `lasting` in spans of `span`. On a busy
// machine a span lasts longer, until each load has made some turns in it: what is warm after the
// first span depends on the work, not on the time. Ends early if a load failed.
void sample(Curve& curve, std::chrono::seconds lasting, std::chrono::seconds span,
            const std::vector<const Load*>& loads) {
  constexpr int kTurns = 10;
  const Time start = Clock::real().now();
  const auto elapsed = [&] {
    return std::chrono::duration_cast<std::chrono::seconds>(Clock::real().now() - start);
  };
  std::promise<void> never;
  const auto pause = never.get_future();
  for (int i = 1; i <= lasting / span; ++i) {
    const auto is_over = [&, ends = after(span)] {
      return Clock::real().now() >= ends && std::ranges::all_of(loads, [&](const Load* load) {
               return load->turns() >= kTurns * i;
             });
    };
    while (!is_over() && !testing::Test::HasFailure()) {
      ASSERT_LT(elapsed(), 10 * lasting) << "the loads are too slow";
      pause.wait_for(std::chrono::milliseconds(200));
      curve.sample();
    }
    curve.end_span(elapsed());
  }
}

// After the first minute, the memory of every process stays at its level. TRIREME_SOAK_SECONDS sets
// how long the test runs.
TEST(Memory, AMixedLoadStaysFlat) {
  const std::chrono::seconds lasting(setting("TRIREME_SOAK_SECONDS", 20));
  const auto span = std::clamp<std::chrono::seconds>(lasting / 4, std::chrono::seconds(1),
                                                     std::chrono::minutes(1));
  // A short run can only show that the memory does not grow without bound.
  const double allowed = span == std::chrono::minutes(1) ? 1.05 : 1.25;
  // This process holds tensors too. With the defaults, malloc would keep those of mixed sizes in
  // heaps that fragment (docs/sessions.md, Memory).
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
  mallopt(M_ARENA_MAX, 2);
  at::set_num_threads(1);
  ProcessCluster cluster({{.workers = 2, .ps = 2}, {"--threads", "1"}});
  ParameterServerStrategy strategy{Cluster(cluster.spec())};
  ClusterCoordinator coordinator(strategy);
  Session session(cluster.target({"worker", 0}));
  const auto scope = strategy.scope();
  const Variable table("table", torch::zeros({100'000, 64}));  // 24 MiB
  // Half as large as the largest tensor of the pipelines, so that the mean of a parameter server
  // stays within 5 % even if it holds one more update during some minute.
  const Variable dense("dense", torch::zeros({2 << 20}));
  const auto floats = [](int turn, int64_t most) {  // one of five sizes, depending on the turn
    return torch::ones({most >> (turn % 5)});
  };

  std::vector<std::pair<std::string, pid_t>> processes = {{"client", getpid()}};
  for (const TaskId& task : cluster.spec().all_tasks()) {
    processes.emplace_back(task.to_string(), cluster.pid(task));
  }
  Curve curve(processes);
  std::atomic<bool> ended = false;
  {
    const auto pipeline =
        function("pipeline",
                 [](const Tensor& x) {
                   Tensor a = x;
                   for (int stage = 0; stage < 4; ++stage) {
                     const DeviceScope on("/job:worker/task:" + std::to_string(stage % 2));
                     a = torch::tanh(a);
                   }
                   return a.sum();
                 },
                 {.check_capture = false});
    const auto grow = function("grow",
                               [](const Tensor& x) {
                                 return torch::cat({x, x + 1});
                               },
                               {.check_capture = false});
    const auto update = function("update",
                                 [&](const Tensor& x, const Tensor& ids) {
                                   dense.assign_add(x.sum() + torch::zeros({2 << 20}));
                                   return torch::embedding(table.read(), ids).sum();
                                 },
                                 {.check_capture = false});
    const auto closure =
        function("closure", [&](const Tensor& x) { return (x * 2).sum() + dense.read()[0]; },
                 {.check_capture = false});
    Load pipelines("pipelines", ended, [&](int turn) {
      std::vector<std::future<Tensor>> results;
      for (int i = 0; i < 4; ++i)
        results.push_back(session.start(pipeline, floats(turn + i, 4 << 20)));
      for (auto& result : results) result.get();
    });
    Load fetches("fetches", ended, [&](int turn) { session.run(grow, floats(turn, 8 << 20)); });
    Load pushes("pushes", ended, [&](int turn) {
      update(floats(turn, 1 << 20), torch::randint(100'000, {1000 << (turn % 3)}));
    });
    Load closures("closures", ended, [&](int turn) {
      for (int i = 0; i < 20; ++i) coordinator.schedule(closure, floats(turn + i, 1 << 18));
      coordinator.join();
    });

    sample(curve, lasting, span, {&pipelines, &fetches, &pushes, &closures});
    ended = true;
  }
  curve.expect_flat(allowed);
}

}  // namespace
}  // namespace trireme
