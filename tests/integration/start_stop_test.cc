// Clusters of three workers and two ps, started and stopped again and again: nothing hangs, and no
// process, thread or descriptor is left. A leak of memory is AddressSanitizer's to find. How often:
// TRIREME_STARTS_IN_PROCESS and TRIREME_STARTS_AS_PROCESSES; .ci/sections/start-stop has it many
// times.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "tests/integration/commands.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

int times(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

int count_files(const char* folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// What a process holds of the system.
struct Holdings {
  int threads = count_files("/proc/self/task");
  int descriptors = count_files("/proc/self/fd");
};

// Threads of gRPC end a moment after the server that they served, so it looks more than once.
Holdings settled(const Holdings& expected) {
  Holdings now;
  for (const Time limit = after(std::chrono::seconds(20));
       (now.threads > expected.threads || now.descriptors > expected.descriptors) &&
       Clock::real().now() < limit;) {
    std::this_thread::yield();
    now = Holdings();
  }
  return now;
}

void expect_nothing_left(const Holdings& before, int round) {
  const Holdings now = settled(before);
  EXPECT_LE(now.threads, before.threads) << "after round " << round;
  EXPECT_LE(now.descriptors, before.descriptors) << "after round " << round;
}

TEST(StartStop, InProcess) {
  const int rounds = times("TRIREME_STARTS_IN_PROCESS", 3);
  // The first round makes what a process has once: the threads that complete calls, gRPC's own.
  { InProcessTestCluster().wait_until_up(); }
  const Holdings before;
  for (int round = 1; round <= rounds; ++round) {
    {
      InProcessTestCluster cluster;
      cluster.wait_until_up();
      // A server that goes while others stay, too.
      if (round % 2 == 0) cluster.restart({"ps", 1});
    }
    expect_nothing_left(before, round);
    if (testing::Test::HasFailure()) return;
  }
  std::cout << rounds << " rounds in process; " << before.threads << " threads and "
            << before.descriptors << " descriptors before and after\n";
}

TEST(StartStop, AsProcesses) {
  const int rounds = times("TRIREME_STARTS_AS_PROCESSES", 2);
  std::optional<Holdings> before;
  for (int round = 1; round <= rounds; ++round) {
    std::vector<pid_t> pids;
    {
      ProcessCluster cluster;
      for (const TaskId& task : cluster.spec().all_tasks()) pids.push_back(cluster.pid(task));
      ASSERT_EQ(pids.size(), 5u);
    }
    for (const pid_t pid : pids) {
      EXPECT_EQ(kill(pid, 0), -1) << "process " << pid << " is left over from round " << round;
    }
    if (!before) before.emplace();
    expect_nothing_left(*before, round);
    if (testing::Test::HasFailure()) return;
  }
  std::cout << rounds << " rounds as processes\n";
}

}  // namespace
}  // namespace trireme
