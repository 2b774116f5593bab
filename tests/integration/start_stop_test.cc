// A cluster can be started and stopped again and again: nothing hangs, and no process, thread or
// file descriptor is left. AddressSanitizer finds memory leaks. TRIREME_STARTS_IN_PROCESS and
// TRIREME_STARTS_AS_PROCESSES set the number of rounds; .ci/sections/start-stop runs many.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "tests/integration/commands.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

int count_files(const char* folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Returns true if Trireme started the thread. All others belong to gRPC or to the test.
bool is_ours(const std::filesystem::path& thread) {
  std::string name;
  std::ifstream(thread / "comm") >> name;
  return name.rfind("trireme", 0) == 0;
}

// Threads and file descriptors of this process.
struct Holdings {
  int our_threads = 0;
  int threads = 0;
  int descriptors = count_files("/proc/self/fd");

  Holdings() {
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      ++threads;
      if (is_ours(thread)) ++our_threads;
    }
  }

  // Returns true if nothing leaked since `before`. gRPC's thread pools, and the descriptors with
  // which their threads wake each other, grow to a size that depends on the number of cores, but
  // not with the number of rounds. They get an allowance of kPools.
  bool within(const Holdings& before) const {
    return our_threads <= before.our_threads && threads <= before.threads + kPools &&
           descriptors <= before.descriptors + kPools;
  }

  static constexpr int kPools = 8;
};

std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
  return out << holdings.our_threads << " threads of ours, " << holdings.threads << " in all, "
             << holdings.descriptors << " descriptors";
}

// Retries for a while, because threads end a moment after the objects that they served.
void expect_nothing_left(const Holdings& before, int round) {
  Holdings now;
  for (const Time limit = after(std::chrono::seconds(20));
       !now.within(before) && Clock::real().now() < limit;) {
    std::this_thread::yield();
    now = Holdings();
  }
  EXPECT_TRUE(now.within(before)) << "after round " << round << ": " << now
                                  << "; before: " << before;
}

TEST(StartStop, InProcess) {
  const int64_t rounds = setting("TRIREME_STARTS_IN_PROCESS", 3);
  // The first round starts threads that last as long as the process, such as gRPC's own.
  { InProcessTestCluster().wait_until_up(); }
  const Holdings before;
  for (int round = 1; round <= rounds; ++round) {
    {
      InProcessTestCluster cluster;
      cluster.wait_until_up();
      // Also restarts a single server while the others stay.
      if (round % 2 == 0) cluster.restart({"ps", 1});
    }
    expect_nothing_left(before, round);
    if (testing::Test::HasFailure()) return;
  }
  std::cout << rounds << " rounds in process; before: " << before << "; after: " << Holdings()
            << "\n";
}

TEST(StartStop, AsProcesses) {
  const int64_t rounds = setting("TRIREME_STARTS_AS_PROCESSES", 2);
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
  std::cout << rounds << " rounds as processes; before: " << *before << "; after: " << Holdings()
            << "\n";
}

}  // namespace
}  // namespace trireme
