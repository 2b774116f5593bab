#include "trireme/ps/push_records.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "trireme/base/status.h"

namespace trireme {
namespace {

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
  writer->end();
  EXPECT_EQ(take(records, writer, {1, 2, 0}), Verdict::kDecided);
  records.forget();
  EXPECT_EQ(records.chunks(), 0u);
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
  EXPECT_TRUE(writers.end(7)->ended());
  EXPECT_EQ(writers.end(7), nullptr);
  EXPECT_TRUE(absl::IsAborted(writers.admit({7, 10, 0}, 0).status()));
  EXPECT_EQ(writers.size(), 0u);
  EXPECT_FALSE(writers.begin(0).ok());
}

}  // namespace
}  // namespace trireme
