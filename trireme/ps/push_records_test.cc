#include "trireme/ps/push_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "trireme/base/status.h"
#include "trireme/testing/manual_clock.h"

namespace trireme {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;
using Verdict = PushRecords::Verdict;

std::shared_ptr<Writer> new_writer() {
  return std::make_shared<Writer>();
}

Verdict take(PushRecords& records, const std::shared_ptr<Writer>& writer, const PushId& id) {
  const Verdict verdict = records.classify(writer, id);
  if (verdict == Verdict::kNew) records.add(writer, id);
  return verdict;
}

TEST(PushRecords, TakesAPushOnce) {
  PushRecords records;
  const auto writer = new_writer();
  EXPECT_EQ(take(records, writer, {1, 5, 0}), Verdict::kNew);
  EXPECT_EQ(take(records, writer, {1, 5, 0}), Verdict::kRepeated);
  EXPECT_EQ(take(records, writer, {1, 5, 1}), Verdict::kNew);
  EXPECT_EQ(take(records, writer, {1, 4, 0}), Verdict::kNew);
  EXPECT_EQ(take(records, new_writer(), {2, 5, 0}), Verdict::kNew);
}

TEST(PushRecords, SizeDependsOnTheWindowNotOnTheOrder) {
  PushRecords records;
  const auto writer = new_writer();
  for (uint64_t i = 0; i < 4096; i += 2) take(records, writer, {1, i, 0});
  EXPECT_EQ(records.chunks(), 4096 / PushRecords::kChunk);
  for (uint64_t i = 1; i < 4096; i += 2) take(records, writer, {1, i, 0});
  EXPECT_EQ(records.chunks(), 4096 / PushRecords::kChunk);
  EXPECT_LT(records.bytes(), 4096);
}

TEST(PushRecords, AgreesWithASetInAnyOrder) {
  std::mt19937 random(7);
  PushRecords records;
  const auto writer = new_writer();
  std::set<std::pair<uint64_t, uint32_t>> taken;
  for (int i = 0; i < 20000; ++i) {
    const PushId id{1, writer->watermark() + random() % 300, static_cast<uint32_t>(random() % 3)};
    EXPECT_EQ(take(records, writer, id) == Verdict::kNew,
              taken.insert({id.sequence, id.round}).second);
    if (i % 100 == 0) writer->raise_watermark(writer->watermark() + random() % 50);
  }
}

TEST(PushRecords, ForgetsBelowTheWatermark) {
  PushRecords records;
  const auto writer = new_writer();
  for (uint64_t i = 0; i < 10000; i += 2) take(records, writer, {1, i, 0});
  writer->raise_watermark(9000);
  EXPECT_EQ(take(records, writer, {1, 8999, 0}), Verdict::kDecided);
  EXPECT_EQ(take(records, writer, {1, 8998, 0}), Verdict::kDecided);
  EXPECT_EQ(take(records, writer, {1, 9000, 0}), Verdict::kRepeated);
  EXPECT_EQ(take(records, writer, {1, 9001, 0}), Verdict::kNew);
  EXPECT_LE(records.chunks(), 1000 / PushRecords::kChunk + 2);
  writer->raise_watermark(10);  // has no effect: a watermark never falls
  EXPECT_EQ(take(records, writer, {1, 20, 0}), Verdict::kDecided);
}

TEST(PushRecords, EndedWritersLeaveNoRecords) {
  PushRecords records;
  const auto writer = new_writer();
  take(records, writer, {1, 1, 0});
  EXPECT_FALSE(records.can_forget());
  writer->end("it is gone");
  EXPECT_EQ(take(records, writer, {1, 2, 0}), Verdict::kDecided);
  EXPECT_TRUE(records.can_forget());
  records.forget();
  EXPECT_FALSE(records.can_forget());
  EXPECT_EQ(records.chunks(), 0u);
  EXPECT_EQ(records.writers(), 0u);
}

TEST(PushRecords, CanForgetOnceTheWatermarkHasPassedAChunk) {
  PushRecords records;
  const auto writer = new_writer();
  take(records, writer, {1, 1, 0});
  writer->raise_watermark(PushRecords::kChunk - 1);
  EXPECT_FALSE(records.can_forget());
  writer->raise_watermark(PushRecords::kChunk);
  EXPECT_TRUE(records.can_forget());
}

// A push can be admitted while the lease runs, and then wait for the shard's lock.
TEST(PushRecords, RejectsAPushWhoseLeaseRanOutAfterItWasAdmitted) {
  ManualClock clock;
  PushRecords records;
  const auto writer =
      std::make_shared<Writer>(WriterOwner{"ads", 1, 1}, clock.now() + seconds(3), clock);
  EXPECT_EQ(take(records, writer, {1, 1, 0}), Verdict::kNew);
  clock.advance(seconds(3));
  EXPECT_EQ(take(records, writer, {1, 1, 0}), Verdict::kDecided);
  EXPECT_EQ(take(records, writer, {1, 2, 0}), Verdict::kDecided);
  // A renewal finds the records as they were.
  writer->renew(clock.now() + seconds(3), 0);
  EXPECT_EQ(take(records, writer, {1, 1, 0}), Verdict::kRepeated);
  EXPECT_EQ(take(records, writer, {1, 2, 0}), Verdict::kNew);
}

TEST(PushRecords, SizeIsBounded) {
  PushRecords records;
  const auto writer = new_writer();
  uint64_t sequence = 0;
  while (take(records, writer, {1, sequence, 0}) == Verdict::kNew) sequence += PushRecords::kChunk;
  EXPECT_EQ(records.chunks(), PushRecords::kMostChunks);
  EXPECT_EQ(take(records, writer, {1, sequence, 0}), Verdict::kTooMany);
  EXPECT_EQ(take(records, writer, {1, 1, 0}), Verdict::kNew) << "its chunk exists";
  writer->raise_watermark(sequence);
  EXPECT_EQ(take(records, writer, {1, sequence, 0}), Verdict::kNew);
  EXPECT_EQ(records.chunks(), 1u);
}

TEST(Writers, AdmitsPushesBetweenBeginAndEnd) {
  Writers writers;
  EXPECT_TRUE(absl::IsAborted(writers.admit({7, 1, 0}, 0).status()));
  EXPECT_TRUE(writers.begin(7).ok());
  EXPECT_TRUE(writers.begin(7).ok());
  EXPECT_TRUE(writers.admit({7, 1, 0}, 0).ok());
  EXPECT_TRUE(writers.admit({7, 9, 0}, 5).ok());
  EXPECT_TRUE(absl::IsAborted(writers.admit({7, 4, 0}, 0).status()));
  const auto writer = value_or_throw(writers.admit({7, 9, 0}, 0));
  EXPECT_TRUE(writers.end(7, "it is gone"));
  EXPECT_TRUE(writer->ended());
  EXPECT_FALSE(writers.end(7, "it is gone"));
  EXPECT_TRUE(absl::IsAborted(writers.admit({7, 10, 0}, 0).status()));
  EXPECT_EQ(writers.size(), 0u);
  EXPECT_FALSE(writers.begin(0).ok());
}

class LeasedWriters : public testing::Test {
 protected:
  static constexpr auto kLease = seconds(3);

  void begin(uint64_t writer, uint64_t generation = 1, const std::string& job = "ads") {
    throw_if_error(writers_.begin(writer, {job, generation, writer}, clock_.now() + kLease));
  }
  void renew(uint64_t writer, uint64_t fenced_below = 0) {
    writers_.renew(writer, clock_.now() + kLease, fenced_below);
  }
  // Returns the text of the error for a push of the writer; empty if it is admitted.
  std::string rejection(uint64_t writer, uint64_t sequence = 5) {
    const auto admitted = writers_.admit({writer, sequence, 0}, 0);
    if (admitted.ok()) return "";
    EXPECT_TRUE(absl::IsAborted(admitted.status()));
    return std::string(admitted.status().message());
  }

  ManualClock clock_;
  Writers writers_{clock_};
};

TEST_F(LeasedWriters, RejectsPushesOnceTheLeaseHasRunOut) {
  begin(7);
  clock_.advance(kLease - Duration(1));
  EXPECT_EQ(rejection(7), "");
  clock_.advance(Duration(1) + seconds(2));
  EXPECT_THAT(rejection(7), HasSubstr("push 5.0 of writer 0000000000000007 is rejected: the lease "
                                      "of its client program ran out 2.0s ago"));
  renew(7);
  EXPECT_EQ(rejection(7), "");
}

TEST_F(LeasedWriters, ARenewalKeepsPushesBelowTheFenceRejected) {
  begin(7);
  clock_.advance(kLease);
  renew(7, 6);
  EXPECT_THAT(rejection(7, 5), HasSubstr("watermark or its fence past it"));
  EXPECT_EQ(rejection(7, 6), "");
  renew(7, 2);  // a fence never falls
  EXPECT_NE(rejection(7, 5), "");
}

TEST_F(LeasedWriters, ALateRenewalDoesNotShortenTheLease) {
  begin(7);
  const Time early = clock_.now() + kLease;
  clock_.advance(seconds(2));
  renew(7);
  writers_.renew(7, early, 0);
  clock_.advance(seconds(2));
  EXPECT_EQ(rejection(7), "");
}

TEST_F(LeasedWriters, AHigherGenerationEndsTheWritersOfLowerOnes) {
  begin(1, 1);
  begin(2, 2);
  begin(3, 1, "other");
  EXPECT_EQ(writers_.end_generations("ads", 2, "generation 2 has taken over"), 1u);
  EXPECT_THAT(rejection(1), HasSubstr("is rejected: generation 2 has taken over"));
  EXPECT_EQ(rejection(2), "");
  EXPECT_EQ(rejection(3), "");
  renew(1);  // has no effect: an ended writer stays ended
  EXPECT_NE(rejection(1), "");
}

TEST_F(LeasedWriters, EndsTheWritersOfAMember) {
  begin(1);
  begin(2);
  EXPECT_EQ(writers_.end_member({"ads", 1, 1}, "it has left"), 1u);
  EXPECT_THAT(rejection(1), HasSubstr("it has left"));
  EXPECT_EQ(rejection(2), "");
}

// A copy of a request may arrive after the writer has ended.
TEST_F(LeasedWriters, AnEndedWriterCannotBeginAgain) {
  begin(7);
  writers_.end(7, "it has left");
  const absl::Status status = writers_.begin(7, {"ads", 1, 7}, clock_.now() + kLease);
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_THAT(describe(status), HasSubstr("it has left"));
  EXPECT_NE(rejection(7), "");
}

TEST_F(LeasedWriters, WritersOfKilledProgramsEndSomeTimeAfterTheirLease) {
  begin(1);
  const auto killed = value_or_throw(writers_.admit({1, 1, 0}, 0));
  clock_.advance(kLease + minutes(5) - Duration(1));
  begin(2);
  EXPECT_EQ(writers_.end_lapsed(minutes(5)), 0u) << "its program may come back";
  clock_.advance(Duration(1));
  EXPECT_EQ(writers_.end_lapsed(minutes(5)), 1u);
  EXPECT_TRUE(killed->ended());
  EXPECT_EQ(writers_.size(), 1u);
  EXPECT_THAT(rejection(1), HasSubstr("ran out long ago; start the program again"));
}

TEST_F(LeasedWriters, TheNumberOfWritersIsBoundedByThoseOfTheLastMinutes) {
  uint64_t writer = 0;
  size_t most = 0;
  for (int i = 0; i < 24 * 60; ++i) {  // a day on which a program is killed every minute
    begin(++writer);
    clock_.advance(minutes(1));
    writers_.end_lapsed(minutes(5));
    most = std::max(most, writers_.size());
  }
  EXPECT_LE(most, 7u);
  EXPECT_THAT(rejection(1), HasSubstr("not registered here"));
}

}  // namespace
}  // namespace trireme
