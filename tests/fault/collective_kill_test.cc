// Workers that train together, as processes. They make their steps together. If one of them is
// killed or frozen at a random moment, every other one ends with an error that names it within the
// lease and one second, whichever way the gradients take. `trireme status` shows for whom a worker
// waits. TRIREME_HURTS sets the number of kills, TRIREME_SEED their order and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/shared_steps.h"
#include "tests/integration/commands.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

const int64_t kCollectiveSeed = setting("TRIREME_SEED", 26);
constexpr milliseconds kWorkerLease = seconds(2);
constexpr int64_t kForever = 1'000'000'000;

// A process of multi_worker_client.cc. Thread-safe.
class TrainingWorker {
 public:
  explicit TrainingWorker(SubprocessOptions options) {
    options.on_stdout = options.on_stderr = [this](const std::string& line) { note(line); };
    process_ = value_or_throw(Subprocess::start(std::move(options)));
  }

  Subprocess& process() { return *process_; }
  std::string text() const {
    MutexLock lock(mutex_);
    return text_;
  }
  // Returns the line with the error of the program, and the time of its arrival.
  struct Failure {
    std::string text;
    Time time;
  };
  std::optional<Failure> failure() const {
    MutexLock lock(mutex_);
    return failure_;
  }
  // Returns true if the process ends with this code before the deadline.
  bool ends_with(int code, Time deadline) {
    return process_->wait(deadline) == ExitStatus{.code = code};
  }

 private:
  void note(const std::string& line) {
    MutexLock lock(mutex_);
    absl::StrAppend(&text_, line, "\n");
    if (line.starts_with("error ")) failure_ = Failure{line, Clock::real().now()};
  }

  mutable Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Subprocess> process_;  // Last, so that no line arrives after its end.
};

// A job of several workers. Its end kills them.
class TrainingJob {
 public:
  explicit TrainingJob(int workers, const std::string& implementation = "auto")
      : implementation_(implementation), steps_(folder_.path() + "/steps", workers) {
    for (int i = 0; i < workers; ++i) ports_.push_back(value_or_throw(PortReservation::make()));
    std::vector<std::string> addresses;
    for (const PortReservation& port : ports_) addresses.push_back(port.address());
    spec_ = ClusterSpec{{"worker", addresses}};
    workers_.resize(workers);
  }

  int size() const { return static_cast<int>(workers_.size()); }
  const ClusterSpec& spec() const { return spec_; }
  const SharedSteps& steps() const { return steps_; }
  TrainingWorker& worker(int index) { return *workers_[index]; }

  void start(int worker, int64_t steps) {
    const std::string config =
        absl::StrCat(R"({"cluster": )", spec_.to_json(),
                     R"(, "task": {"type": "worker", "index": )", worker, "}}");
    workers_[worker] = std::make_unique<TrainingWorker>(SubprocessOptions{
        .argv = {built_program("multi_worker_client"), folder_.path() + "/steps",
                 absl::StrCat(steps), absl::StrCat(kWorkerLease.count()), implementation_},
        .environment = {{"TF_CONFIG", config}},
        .null_stdin = true});
  }
  void start_all(int64_t steps) {
    for (int worker = 0; worker < size(); ++worker) start(worker, steps);
  }

  // Returns the steps of all workers at one moment. No number changes between two readings that
  // are equal, because numbers only grow.
  std::vector<int64_t> steps_at_once() const {
    std::vector<int64_t> before, after = steps_.read();
    do {
      before = std::move(after);
      after = steps_.read();
    } while (before != after);
    return after;
  }
  // Returns the output of all workers that were started.
  std::string text() const {
    std::string text;
    for (int i = 0; i < size(); ++i) {
      if (workers_[i]) absl::StrAppend(&text, "worker ", i, ":\n", workers_[i]->text());
    }
    return text;
  }

 private:
  const std::string implementation_;
  const TemporaryFolder folder_;
  const SharedSteps steps_;
  std::vector<PortReservation> ports_;
  ClusterSpec spec_;
  std::vector<std::unique_ptr<TrainingWorker>> workers_;
};

// Reads the steps of all workers until each has made `wanted` steps and the time has come. Checks
// that they never differ by more than one.
void expect_together(const TrainingJob& job, int64_t wanted, Duration time) {
  std::optional<Time> end;
  int64_t apart = 0;
  const bool reached = wait_until(
      [&] {
        const auto steps = job.steps_at_once();
        const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
        apart = std::max(apart, *most - *least);
        if (*least >= wanted && !end) end = after(time);
        return end && Clock::real().now() >= *end;
      },
      kLimit);
  ASSERT_TRUE(reached) << job.text();
  ASSERT_LE(apart, 1) << job.text();
}

// Checks that every worker but the lost one ends with an error that names it, in time.
void expect_survivors_name(TrainingJob& job, int lost, Time hurt) {
  const std::string name = absl::StrCat("rank ", lost, " (/job:worker/task:", lost, ")");
  for (int i = 0; i < job.size(); ++i) {
    if (i == lost) continue;
    EXPECT_TRUE(job.worker(i).ends_with(3, after(kLimit))) << job.text();
    const auto failure = job.worker(i).failure();
    ASSERT_TRUE(failure) << job.text();
    EXPECT_THAT(failure->text, HasSubstr(name)) << job.text();
    EXPECT_LE(std::chrono::duration_cast<milliseconds>(failure->time - hurt).count(),
              (kWorkerLease + seconds(1)).count())
        << "worker " << i << " has needed too long; " << job.text();
  }
}

TEST(CollectiveKills, EverySurvivorNamesTheWorkerThatWasLost) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kCollectiveSeed));
  std::mt19937 random(static_cast<uint32_t>(kCollectiveSeed));
  const int64_t hurts = setting("TRIREME_HURTS", 6);
  for (int64_t i = 0; i < hurts && !testing::Test::HasFailure(); ++i) {
    const std::string implementation = std::array{"auto", "ring", "gloo"}[i / 2 % 3];
    TrainingJob job(4, implementation);
    const int lost = static_cast<int>(random() % 4);
    const bool frozen = i % 2 == 1;
    const milliseconds moment(random() % 500);
    SCOPED_TRACE(absl::StrCat(i, ", ", implementation, ": worker ", lost,
                              frozen ? " is frozen" : " is killed", " after ", moment.count(),
                              " ms"));
    job.start_all(kForever);
    ASSERT_NO_FATAL_FAILURE(expect_together(job, 3, moment));
    const Time hurt = Clock::real().now();
    job.worker(lost).process().send_signal(frozen ? SIGSTOP : SIGKILL);
    ASSERT_NO_FATAL_FAILURE(expect_survivors_name(job, lost, hurt));
    if (frozen) {
      // The others are gone, and the frozen worker finds out by itself. It may finish the step for
      // which the others had given it their values, but no further one.
      job.worker(lost).process().send_signal(SIGCONT);
      EXPECT_TRUE(job.worker(lost).ends_with(3, after(kLimit))) << job.text();
    }
    const auto steps = job.steps().read();
    const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
    EXPECT_LE(*most - *least, 1) << job.text();
  }
}

TEST(CollectiveKills, AWorkerThatEndsEarlyIsNamed) {
  TrainingJob job(2);
  job.start(0, 3);
  job.start(1, 4);
  EXPECT_TRUE(job.worker(0).ends_with(0, after(kLimit))) << job.text();
  EXPECT_TRUE(job.worker(1).ends_with(3, after(kLimit))) << job.text();
  EXPECT_THAT(job.worker(1).text(), HasSubstr("rank 0 (/job:worker/task:0) left the group"));
  EXPECT_THAT(job.worker(0).text(), Not(HasSubstr("has failed")));
}

TEST(CollectiveKills, StatusShowsForWhomAWorkerWaits) {
  TrainingJob job(2);
  const TemporaryFolder folder;
  folder.write("cluster.json", job.spec().to_json());
  job.start(0, 3);
  std::string shown;
  const bool is_shown = wait_until(
      [&] {
        shown = run_trireme({"status", "--cluster", folder.path() + "/cluster.json"}).stdout_text;
        return shown.find("waits for rank 1 (/job:worker/task:1)") != std::string::npos;
      },
      kLimit);
  EXPECT_TRUE(is_shown) << shown << job.text();
  job.start(1, 3);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(job.worker(i).ends_with(0, after(kLimit))) << job.text();
  }
  EXPECT_THAT(job.steps().read(), testing::ElementsAre(3, 3));
}

}  // namespace
}  // namespace trireme
