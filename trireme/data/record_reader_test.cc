#include "trireme/data/record_reader.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A format in which each byte is a record. The file is broken at a '!', and a '?' cannot be
// decoded.
class ByteFormat : public RecordFormat {
 public:
  explicit ByteFormat(bool has_lines) : has_lines_(has_lines) {}

  bool has_lines() const override { return has_lines_; }
  absl::StatusOr<Whole> read_head(InputFile&) const override { return Whole{}; }
  Whole split(std::string_view bytes, bool, int64_t most) const override {
    const size_t end = std::min(bytes.find('!'), bytes.size());
    Whole whole;
    whole.bytes = std::min<size_t>(end, most);
    whole.records = static_cast<int64_t>(whole.bytes);
    if (whole.bytes == end && end < bytes.size()) whole.fault = "is broken";
    return whole;
  }
  absl::StatusOr<BlockPtr> decode(const RawRecords& raw, const BadRecord&) const override {
    if (raw.bytes.find('?') != std::string_view::npos) {
      return make_status(ErrorCode::kResourceExhausted, "it is too large");
    }
    auto block = std::make_shared<Block>();
    block->rows = raw.records;
    block->columns.push_back({at::zeros({raw.records}), {}});
    return block;
  }

 private:
  const bool has_lines_;
};

class RecordReaderTest : public testing::Test {
 protected:
  void TearDown() override { (void)Files::local().remove(options_.path); }

  std::unique_ptr<BlockReader> open(const std::string& bytes, bool has_lines = false) {
    options_.path = testing::TempDir() + "record_reader_test_" +
                    testing::UnitTest::GetInstance()->current_test_info()->name();
    (void)Files::local().remove(options_.path);
    throw_if_error(Files::local().write_text(options_.path, bytes));
    return value_or_throw(
        open_records(Files::local(), std::make_shared<const ByteFormat>(has_lines), options_));
  }

  RecordReaderOptions options_{.most_records = 4};
};

// Returns the numbers of records of the blocks that are left.
std::vector<int64_t> blocks_left(BlockReader& reader) {
  std::vector<int64_t> rows;
  while (const BlockPtr block = value_or_throw(reader.next())) rows.push_back(block->rows);
  return rows;
}

TEST_F(RecordReaderTest, ABlockHasAtMostAsManyRecordsAsAllowed) {
  EXPECT_THAT(blocks_left(*open("abcdefghij")), ElementsAre(4, 4, 2));
  const auto reader = open("abcdefghij");
  EXPECT_EQ(value_or_throw(reader->skip(5)), 5);
  EXPECT_THAT(blocks_left(*reader), ElementsAre(4, 1));
}

TEST_F(RecordReaderTest, NamesTheFileIfAPieceCannotBeDecoded) {
  for (const int64_t skipped : {0, 1}) {
    const auto reader = open("ab?");
    options_.skip_bad = true;  // in the second turn, in which skip() decodes
    const absl::Status status =
        skipped > 0 ? reader->skip(skipped).status() : reader->next().status();
    EXPECT_EQ(error_code(status), ErrorCode::kResourceExhausted);
    EXPECT_THAT(describe(status),
                AllOf(HasSubstr("file '" + options_.path + "'"), HasSubstr("it is too large")));
  }
}

TEST_F(RecordReaderTest, WarnsThatTheRestOfAFileIsLeftOut) {
  options_.skip_bad = true;
  blocks_left(*open("!"));  // the first bad record of a process is logged in any case
  const auto reader = open("ab!c\nd");
  testing::internal::CaptureStderr();
  EXPECT_THAT(blocks_left(*reader), ElementsAre(2));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("the rest of the file"), HasSubstr(options_.path),
                    HasSubstr("byte 2: is broken")));
}

TEST_F(RecordReaderTest, AFaultInAFileOfLinesCostsItsLineOnly) {
  options_.skip_bad = true;
  const uint64_t before = bad_records();
  EXPECT_THAT(blocks_left(*open("ab!c!\ndefgh!", true)), ElementsAre(2, 4, 1));
  EXPECT_EQ(bad_records() - before, 2);
}

}  // namespace
}  // namespace trireme::internal
