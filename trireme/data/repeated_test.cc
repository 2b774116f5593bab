#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"
#include "trireme/data/dataset.h"
#include "trireme/data/dataset_data.h"
#include "trireme/data/simple_streams.h"
#include "trireme/data/test_streams.h"

namespace trireme::internal {
namespace {

using testing::HasSubstr;

// Skips 2^50 elements of a dataset whose repetitions have 2^40 elements.
Skipped skip_far(const Dataset& repeated) {
  Repeated<Element> stream(Access<Dataset>::last(repeated), 5, [](uint64_t) {
    return std::make_unique<NumberStream>(int64_t{1} << 40);
  });
  return stream.skip(int64_t{1} << 50);
}

TEST(Repeated, LimitsTheElementsThatAreDrawnToCountThem) {
  const Dataset lines = Dataset::text_lines("voyages.txt");
  EXPECT_EQ(value_or_throw(skip_far(lines.repeat())), int64_t{1} << 50) << "none is drawn";
  const absl::Status status = skip_far(lines.shuffle(10).repeat()).status();
  EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted);
  EXPECT_THAT(describe(status), HasSubstr("a repetition has more than 4294967296 elements"));
}

}  // namespace
}  // namespace trireme::internal
