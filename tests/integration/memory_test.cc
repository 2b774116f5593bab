// The memory of real servers under load that goes on: it is bounded, and it stays flat.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/graph/device_scope.h"
#include "trireme/graph/function.h"
#include "trireme/runtime/session.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using torch::Tensor;

constexpr int64_t kMiB = 1 << 20;
// An idle server holds less than this, LibTorch included.
constexpr int64_t kEmptyServer = 350 * kMiB;

int64_t memory(pid_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, field.size() + 1, field + ":") != 0) continue;
    return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  throw Error(ErrorCode::kInternal, "no field " + field);
}

TEST(Memory, QueuedStartsWaitAtTheClient) {
  ProcessCluster cluster({{.workers = 1, .ps = 0}, {"--threads", "1"}});
  const TaskId task{"worker", 0};
  Session session(cluster.target(task), {.timeout = std::chrono::minutes(5)});
  const auto step =
      function("step",
               [](const Tensor& x) {
                 Tensor sum = torch::zeros({});  // takes its time, and no memory beside the input
                 for (int i = 0; i < 16; ++i) sum = sum + x.sum();
                 return sum;
               },
               {.check_capture = false});
  const Tensor x = torch::ones({8 << 20});  // 32 MiB
  session.run(step, x);
  std::deque<std::future<Tensor>> results;
  for (int i = 0; i < 150; ++i) results.push_back(session.start(step, x));
  for (auto& result : results) EXPECT_GT(result.get().item<float>(), 0);
  const int64_t highest = memory(cluster.pid(task), "VmHWM");
  std::printf("150 starts of 32 MiB: the server held at most %.0f MiB\n", highest / 1048576.0);
  // 512 MiB of inputs, and 2 MiB of each that waits.
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
    before.push_back(memory(cluster.pid({"worker", task}), "VmHWM"));
  }
  run(180);
  for (int task = 0; task < 2; ++task) {
    const int64_t after = memory(cluster.pid({"worker", task}), "VmHWM");
    std::printf("worker %d: %.0f MiB after 100 steps, %.0f MiB after 280\n", task,
                before[task] / 1048576.0, after / 1048576.0);
    EXPECT_LT(after, before[task] + before[task] / 4);  // it grew by 1.4 GB in 100 steps
    EXPECT_LT(after, kEmptyServer + 1024 * kMiB);
  }
}

// One kind of load, again and again until the end, on a thread of its own.
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

// TRIREME_SOAK_SECONDS: the memory of every process after the first minute, or after half of the
// time if that is less, is its memory at the end.
TEST(Memory, AMixedLoadStaysFlat) {
  const std::chrono::seconds lasting(setting("TRIREME_SOAK_SECONDS", 20));
  const std::chrono::seconds warm_up =
      std::min<std::chrono::seconds>(lasting / 2, std::chrono::minutes(1));
  const double allowed = lasting >= std::chrono::minutes(10)
                             ? 1.05
                             : 1.5;  // a short run only sees that nothing runs away
  at::set_num_threads(1);
  ProcessCluster cluster({{.workers = 2, .ps = 2}, {"--threads", "1"}});
  ParameterServerStrategy strategy{Cluster(cluster.spec())};
  ClusterCoordinator coordinator(strategy);
  Session session(cluster.target({"worker", 0}));
  const auto scope = strategy.scope();
  const Variable table("table", torch::zeros({100'000, 64}));  // 24 MiB
  const Variable dense("dense", torch::zeros({4 << 20}));
  const auto floats = [](int turn, int64_t most) {  // of sizes that keep changing, a few of them
    return torch::ones({most >> (turn % 5)});
  };

  std::vector<std::pair<std::string, pid_t>> processes = {{"client", getpid()}};
  for (const TaskId& task : cluster.spec().all_tasks()) {
    processes.emplace_back(task.to_string(), cluster.pid(task));
  }
  std::vector<int64_t> warm;
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
                                   dense.assign_add(x.sum() + torch::zeros({4 << 20}));
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

    const Time start = Clock::real().now();
    std::promise<void> never;
    const auto pause = never.get_future();
    for (std::chrono::seconds now(0); now < lasting && !testing::Test::HasFailure();) {
      now += std::min<std::chrono::seconds>(lasting / 4, std::chrono::seconds(60));
      pause.wait_until(start + std::min(now, lasting));
      std::printf("%4lld s", static_cast<long long>(now.count()));
      for (const auto& [name, pid] : processes) {
        std::printf("  %s %.0f MiB", name.c_str(), memory(pid, "VmHWM") / 1048576.0);
      }
      std::printf("\n");
      std::fflush(stdout);
      if (warm.empty() && now >= warm_up) {
        for (const auto& [name, pid] : processes) warm.push_back(memory(pid, "VmHWM"));
      }
    }
    ended = true;
  }
  ASSERT_EQ(warm.size(), processes.size());
  for (size_t i = 0; i < processes.size(); ++i) {
    const auto& [name, pid] = processes[i];
    EXPECT_LT(memory(pid, "VmHWM"), warm[i] * allowed) << name << " had " << warm[i] << " before";
  }
}

}  // namespace
}  // namespace trireme
