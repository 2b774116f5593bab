#include "trireme/data/safetensors_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/data/file_facts.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

// Limits of a block, unless a single row is larger.
constexpr uint64_t kSafetensorsBlockBytes = 1 << 20;
constexpr int64_t kSafetensorsBlockRows = 64 << 10;

absl::Status safetensors_fault(const std::string& path, std::string message) {
  return make_status(ErrorCode::kInvalidArgument, std::move(message),
                     {"", absl::StrCat("file '", path, "'")});
}

// Checks that a tensor has rows, as many as the tensor `first`.
absl::Status check_rows(const std::string& path, const SafetensorsEntry& entry,
                        const SafetensorsEntry& first) {
  if (entry.sizes.empty()) {
    return safetensors_fault(path, absl::StrCat("tensor '", entry.name,
                                                "' is a single number and has no rows; leave it "
                                                "out by naming the columns to read"));
  }
  if (entry.sizes[0] == first.sizes[0]) return absl::OkStatus();
  return safetensors_fault(
      path,
      absl::StrCat("tensor '", first.name, "' has ", first.sizes[0], " rows, but tensor '",
                   entry.name, "' has ", entry.sizes[0], "; columns need the same number of rows"));
}

std::vector<int64_t> row_sizes(const SafetensorsEntry& entry) {
  return {entry.sizes.begin() + 1, entry.sizes.end()};
}

// Reads rows of tensors. Not thread-safe.
class SafetensorsRows final : public BlockReader {
 public:
  // There is at least one tensor, and all have the same number of rows.
  SafetensorsRows(std::unique_ptr<InputFile> file, std::vector<SafetensorsEntry> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)), rows_(tensors_[0].sizes[0]) {
    uint64_t bytes = 1;
    for (const SafetensorsEntry& tensor : tensors_) bytes += row_bytes(tensor);
    block_rows_ = std::clamp<int64_t>(kSafetensorsBlockBytes / bytes, 1, kSafetensorsBlockRows);
  }

  absl::StatusOr<BlockPtr> next() override {
    if (row_ == rows_) return BlockPtr();
    return try_read();
  }

  absl::StatusOr<int64_t> skip(int64_t count) override {
    count = std::min(count, rows_ - row_);
    row_ += count;
    return count;
  }

 private:
  absl::StatusOr<BlockPtr> try_read() {
    auto block = std::make_shared<Block>();
    block->rows = std::min(block_rows_, rows_ - row_);
    for (const SafetensorsEntry& tensor : tensors_) {
      std::vector<int64_t> sizes = tensor.sizes;
      sizes[0] = block->rows;
      TRIREME_ASSIGN_OR_RETURN(at::Tensor values, try_call([&] {
                                 return at::empty(sizes, at::TensorOptions().dtype(tensor.dtype));
                               }));
      TRIREME_RETURN_IF_ERROR(file_->read(tensor.begin + row_ * row_bytes(tensor),
                                          values.data_ptr(), block->rows * row_bytes(tensor)));
      block->columns.push_back({std::move(values), {}});
    }
    row_ += block->rows;
    return BlockPtr(std::move(block));
  }

  // The header has been checked, so that the rows fill the tensor exactly.
  uint64_t row_bytes(const SafetensorsEntry& tensor) const {
    return rows_ == 0 ? 0 : (tensor.end - tensor.begin) / static_cast<uint64_t>(rows_);
  }

  const std::unique_ptr<InputFile> file_;
  const std::vector<SafetensorsEntry> tensors_;
  const int64_t rows_;
  int64_t block_rows_ = 1;
  int64_t row_ = 0;  // next row
};

absl::Status check_tensor(const std::string& path, const Column& column,
                          const SafetensorsEntry& entry) {
  if (entry.dtype == column.dtype && row_sizes(entry) == column.sizes) return absl::OkStatus();
  return safetensors_fault(
      path, absl::StrCat("tensor '", entry.name, "' has rows of ", dtype_name(entry.dtype), " ",
                         format_shape(row_sizes(entry)), "; the column is ",
                         dtype_name(column.dtype), " ", format_shape(column.sizes)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockReader>> open_safetensors(const proto::DatasetStep::Files& def,
                                                              Files& files,
                                                              const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, files.open(path));
  TRIREME_ASSIGN_OR_RETURN(const SafetensorsHeader header, read_safetensors_header(*file, path));
  std::vector<SafetensorsEntry> tensors;
  for (const proto::ColumnDef& column : def.columns()) {
    const auto entry =
        std::find_if(header.tensors.begin(), header.tensors.end(),
                     [&](const auto& tensor) { return tensor.name == column.name(); });
    if (entry == header.tensors.end()) {
      return safetensors_fault(path, absl::StrCat("there is no tensor '", column.name(), "'"));
    }
    tensors.push_back(*entry);
    TRIREME_RETURN_IF_ERROR(check_rows(path, tensors.back(), tensors[0]));
    TRIREME_RETURN_IF_ERROR(check_tensor(path, from_def(column), tensors.back()));
  }
  if (tensors.empty()) return safetensors_fault(path, "there are no columns to read");
  return std::make_unique<SafetensorsRows>(std::move(file), std::move(tensors));
}

absl::StatusOr<std::vector<Column>> safetensors_columns(Files& files, const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, files.open(path));
  TRIREME_ASSIGN_OR_RETURN(const SafetensorsHeader header, read_safetensors_header(*file, path));
  std::vector<Column> columns;
  for (const SafetensorsEntry& entry : header.tensors) {
    TRIREME_RETURN_IF_ERROR(check_rows(path, entry, header.tensors[0]));
    columns.push_back({.name = entry.name, .dtype = entry.dtype, .sizes = row_sizes(entry)});
  }
  if (columns.empty()) return safetensors_fault(path, "there are no tensors");
  std::sort(columns.begin(), columns.end(),
            [](const Column& a, const Column& b) { return a.name < b.name; });
  return columns;
}

}  // namespace trireme::internal
