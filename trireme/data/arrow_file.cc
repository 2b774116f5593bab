#include "trireme/data/arrow_file.h"

#include <arrow/buffer.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::internal {
namespace {

constexpr char kReadErrorDetail[] = "trireme::internal::ReadErrorDetail";

// Carries an error of a file through Arrow.
class ReadErrorDetail final : public arrow::StatusDetail {
 public:
  explicit ReadErrorDetail(absl::Status error) : error_(std::move(error)) {}

  const char* type_id() const override { return kReadErrorDetail; }
  std::string ToString() const override { return std::string(error_.message()); }
  const absl::Status& error() const { return error_; }

 private:
  const absl::Status error_;
};

}  // namespace

arrow::Result<int64_t> ArrowFile::ReadAt(int64_t position, int64_t bytes, void* out) {
  if (position < 0 || bytes < 0) {
    return arrow::Status::Invalid("a read of ", bytes, " bytes at offset ", position);
  }
  const int64_t count = std::min(bytes, std::max<int64_t>(size() - position, 0));
  if (count == 0) return 0;
  const absl::Status read = file_->read(static_cast<uint64_t>(position), out, count);
  if (!read.ok()) {
    return arrow::Status(arrow::StatusCode::IOError, std::string(read.message()),
                         std::make_shared<ReadErrorDetail>(read));
  }
  return count;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> ArrowFile::ReadAt(int64_t position, int64_t bytes) {
  // Limits the memory to what the file has: lengths in damaged files may be anything.
  const int64_t most = std::max<int64_t>(size() - std::max<int64_t>(position, 0), 0);
  ARROW_ASSIGN_OR_RAISE(std::unique_ptr<arrow::ResizableBuffer> buffer,
                        arrow::AllocateResizableBuffer(std::clamp<int64_t>(bytes, 0, most)));
  ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position, bytes, buffer->mutable_data()));
  ARROW_RETURN_NOT_OK(buffer->Resize(count));
  return std::shared_ptr<arrow::Buffer>(std::move(buffer));
}

arrow::Result<int64_t> ArrowFile::Read(int64_t bytes, void* out) {
  ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position_, bytes, out));
  position_ += count;
  return count;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> ArrowFile::Read(int64_t bytes) {
  ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, ReadAt(position_, bytes));
  position_ += buffer->size();
  return buffer;
}

arrow::Status ArrowFile::Seek(int64_t position) {
  position_ = position;
  return arrow::Status::OK();
}

arrow::Status ArrowFile::Close() {
  closed_ = true;
  return arrow::Status::OK();
}

absl::Status read_error(const arrow::Status& status) {
  if (status.detail() == nullptr ||
      status.detail()->type_id() != std::string_view(kReadErrorDetail)) {
    return absl::OkStatus();
  }
  return static_cast<const ReadErrorDetail&>(*status.detail()).error();
}

}  // namespace trireme::internal
