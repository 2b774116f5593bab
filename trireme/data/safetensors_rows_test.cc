#include "trireme/data/safetensors_rows.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/data/file_facts.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme::internal {
namespace {

using ::testing::HasSubstr;

class SafetensorsRowsTest : public ::testing::Test {
 protected:
  void write(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    std::vector<TensorToSave> saved;
    for (const auto& [name, tensor] : tensors) {
      saved.push_back(
          {name, tensor.scalar_type(), tensor.sizes().vec(), tensor.data_ptr(), tensor.nbytes()});
    }
    const auto written = write_tensor_file(files_, "/rows", saved);
    ASSERT_TRUE(written.ok()) << written.status();
  }
  absl::StatusOr<std::unique_ptr<BlockReader>> open(const std::vector<Column>& columns) {
    proto::DatasetStep::Files def;
    for (const Column& column : columns) *def.add_columns() = to_def(column);
    return open_safetensors(def, files_, "/rows");
  }
  void expect_fault(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument) << status;
    EXPECT_EQ(error_origin(status).object, "file '/rows'");
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  UnsyncedFiles files_;
};

TEST_F(SafetensorsRowsTest, GivesTheRowsInBlocks) {
  constexpr int64_t kRows = 40'000;  // of 56 bytes
  const at::Tensor x = at::arange(kRows * 6, at::kDouble).view({kRows, 3, 2});
  const at::Tensor y = at::arange(kRows);
  write({{"y", y}, {"x", x}});
  const auto columns = safetensors_columns(files_, "/rows");
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_EQ(*columns, (std::vector<Column>{{"x", at::kDouble, {3, 2}}, {"y", at::kLong}}));

  auto reader = open(*columns);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<at::Tensor> xs, ys;
  while (true) {
    const auto block = (*reader)->next();
    ASSERT_TRUE(block.ok()) << block.status();
    if (*block == nullptr) break;
    EXPECT_LE((*block)->columns[0].values.nbytes(), size_t{1} << 20);
    EXPECT_EQ((*block)->columns[1].values.size(0), (*block)->rows);
    xs.push_back((*block)->columns[0].values);
    ys.push_back((*block)->columns[1].values);
  }
  EXPECT_EQ(xs.size(), 3u);
  EXPECT_TRUE(at::equal(at::cat(xs), x));
  EXPECT_TRUE(at::equal(at::cat(ys), y));
  EXPECT_EQ((*reader)->next().value(), nullptr);
}

TEST_F(SafetensorsRowsTest, SkipsRows) {
  const at::Tensor x = at::arange(300'000, at::kFloat);
  write({{"x", x}});
  for (const int64_t skip : {0, 1, 70'000, 299'999, 300'000, 300'001}) {
    auto reader = open({{"x", at::kFloat}});
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->skip(skip).value(), std::min<int64_t>(skip, 300'000));
    const auto block = (*reader)->next();
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_EQ(*block == nullptr, skip >= 300'000);
    if (*block != nullptr) {
      EXPECT_EQ((*block)->columns[0].values[0].item<float>(), static_cast<float>(skip));
    }
  }
}

TEST_F(SafetensorsRowsTest, ARowMayBeLargerThanABlock) {
  const at::Tensor x = at::arange(3 << 20, at::kByte).view({3, 1 << 20});
  write({{"x", x}, {"none", at::empty({3, 0})}});
  auto reader = open({{"x", at::kByte, {1 << 20}}, {"none", at::kFloat, {0}}});
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (int64_t i = 0; i < 3; ++i) {
    const auto block = (*reader)->next();
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_NE(*block, nullptr);
    EXPECT_EQ((*block)->rows, 1);
    EXPECT_TRUE(at::equal((*block)->columns[0].values[0], x[i]));
  }
  EXPECT_EQ((*reader)->next().value(), nullptr);
}

TEST_F(SafetensorsRowsTest, RejectsTensorsThatAreNotTheColumns) {
  write({{"x", at::arange(4)}, {"y", at::arange(6).view({3, 2})}, {"one", at::scalar_tensor(1)}});
  expect_fault(open({{"z", at::kLong}}).status(), "no tensor 'z'");
  expect_fault(open({{"x", at::kInt}}).status(), "int64 []; the column is int32 []");
  expect_fault(open({{"y", at::kLong, {3}}}).status(), "int64 [2]; the column is int64 [3]");
  expect_fault(open({{"x", at::kLong}, {"y", at::kLong, {2}}}).status(),
               "'x' has 4 rows, but tensor 'y' has 3");
  expect_fault(open({{"one", at::kFloat}}).status(), "single number");
  expect_fault(safetensors_columns(files_, "/rows").status(), "rows");
}

TEST_F(SafetensorsRowsTest, RejectsADamagedFile) {
  write({{"x", at::arange(4)}});
  const std::string bytes = files_.contents("/rows");
  for (const size_t length : {size_t{0}, size_t{7}, size_t{100}, bytes.size() - 1}) {
    files_.set_contents("/rows", bytes.substr(0, length));
    const absl::Status status = open({{"x", at::kLong}}).status();
    EXPECT_EQ(error_code(status), ErrorCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/rows"));
  }
}

}  // namespace
}  // namespace trireme::internal
