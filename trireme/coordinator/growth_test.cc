#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "trireme/base/sanitizer.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/decided_sequences.h"
#include "trireme/ps/push_records.h"
#include "trireme/testing/manual_clock.h"

// A day of training, simulated by sequence numbers: a coordinator that schedules 10,000 runs a
// second, closures that take hours, and programs that are killed. Nothing may grow beyond the
// bounds that docs/parameter_servers.md states.
namespace trireme::internal {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint64_t kCoordinator = 1;
constexpr auto kWriterLease = seconds(3);
constexpr uint64_t kRunsPerSecond = 10'000;
constexpr uint64_t kRepeat = 500;  // Number of runs of a closure.

class SimulatedDay {
 public:
  SimulatedDay() { throw_if_error(writers_.begin(kCoordinator, owner(kCoordinator), lease_end())); }

  // Lets a second pass.
  void step() {
    clock_.advance(seconds(1));
    writers_.renew(kCoordinator, lease_end(), 0);
    // A server does this every few seconds (HostedJobs::expire).
    writers_.end_lapsed(minutes(6));
    if (records_.can_forget()) records_.forget();
    for (uint64_t i = 0; i < kRunsPerSecond / kRepeat; ++i) {
      // This is what ClosureQueue::put() waits for.
      const uint64_t open = sequences_.next() - sequences_.watermark();
      if (open + kRepeat > ClosureQueueOptions().most_open) {
        ++seconds_waited;
        break;
      }
      in_flight_.push_back(sequences_.allocate(kRepeat));
      if (in_flight_.size() > kWorkers) run_one();
    }
    check_bounds();
  }
  // Schedules a closure that a worker holds until finish_long().
  void start_long() { long_.push_back(sequences_.allocate(kRepeat)); }
  void finish_long() {
    run(long_.front());
    long_.pop_front();
  }
  // Starts a program that makes some pushes and is killed: it neither renews its lease nor ends its
  // writer.
  void run_and_kill_a_program() {
    const uint64_t writer = next_writer_++;
    throw_if_error(writers_.begin(writer, owner(writer), lease_end()));
    for (uint64_t sequence = 1; sequence < 5000; sequence += 100) push({writer, sequence, 0}, 1);
  }
  void finish_all() {
    while (!long_.empty()) finish_long();
    while (!in_flight_.empty()) run_one();
    check_bounds();
  }

  uint64_t seconds_waited = 0;
  uint64_t pushes = 0, rejected = 0;
  size_t most_chunks = 0, most_writers = 0, most_recorded_writers = 0, most_ranges = 0;

 private:
  static constexpr size_t kWorkers = 64;

  static WriterOwner owner(uint64_t writer) { return {"day", 1, writer}; }
  Time lease_end() const { return clock_.now() + kWriterLease; }

  // Runs one of the closures in flight, in any order.
  void run_one() {
    std::swap(in_flight_[random_() % in_flight_.size()], in_flight_.back());
    run(in_flight_.back());
    in_flight_.pop_back();
  }
  // Makes the first and the last push of a closure and decides it. Those between take no memory.
  void run(uint64_t first) {
    for (const uint64_t sequence : {first, first + kRepeat - 1}) {
      push({kCoordinator, sequence, 0}, sequences_.watermark());
    }
    sequences_.decide(first, kRepeat);
  }
  void push(const PushId& id, uint64_t watermark) {
    ++pushes;
    const auto writer = writers_.admit(id, watermark);
    if (!writer.ok() || records_.classify(*writer, id) != PushRecords::Verdict::kNew) {
      ++rejected;
      return;
    }
    records_.add(*writer, id);
  }
  void check_bounds() {
    most_chunks = std::max(most_chunks, records_.chunks());
    most_writers = std::max(most_writers, writers_.size());
    most_recorded_writers = std::max(most_recorded_writers, records_.writers());
    most_ranges = std::max(most_ranges, sequences_.ranges());
  }

  ManualClock clock_;
  std::mt19937 random_{7};
  DecidedSequences sequences_;
  Writers writers_{clock_};
  PushRecords records_;
  std::vector<uint64_t> in_flight_;
  std::deque<uint64_t> long_;
  uint64_t next_writer_ = kCoordinator + 1;
};

// A day; with a sanitizer, which would take most of a minute for it, three hours.
constexpr auto kSimulated = hours(kSanitized ? 3 : 24);

TEST(Growth, RecordsAndWritersStayWithinTheirBoundsForADay) {
  SimulatedDay day;
  constexpr int64_t kEnd = seconds(kSimulated).count();
  constexpr int64_t kMinute = seconds(minutes(1)).count();
  constexpr int64_t kHour = seconds(hours(1)).count();
  for (int64_t second = 0; second < kEnd; ++second) {
    day.step();
    if (second % kMinute == 0) day.run_and_kill_a_program();
    // Every third hour, one closure takes more than an hour. Without a limit its records would
    // exceed what a shard accepts, 33.5 million sequences, after 56 minutes.
    if (second % (3 * kHour) == kHour) day.start_long();
    if (second % (3 * kHour) == 2 * kHour + 10 * kMinute) day.finish_long();
  }
  day.finish_all();

  EXPECT_EQ(day.rejected, 0u) << "of " << day.pushes << " pushes";
  EXPECT_GT(day.seconds_waited, 0u) << "the limit was not reached";
  // The window of the coordinator, and ten chunks for each program of the last minutes.
  const size_t window = ClosureQueueOptions().most_open / PushRecords::kChunk;
  EXPECT_LE(day.most_chunks, window + 1 + 10 * 7);
  EXPECT_GE(day.most_chunks, window / 2);
  EXPECT_LE(day.most_chunks, PushRecords::kMostChunks / 2);
  // The coordinator, and a program for each minute until its writer is removed.
  EXPECT_LE(day.most_writers, 1u + 7u);
  EXPECT_LE(day.most_recorded_writers, 1u + 8u);
  // A range for each closure that is not done.
  EXPECT_LE(day.most_ranges, 66u);
}

}  // namespace
}  // namespace trireme::internal
