#pragma once

#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <arrow/status.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "trireme/base/files.h"

namespace trireme::internal {

// A file of Trireme that Arrow reads. ReadAt() is thread-safe. Made by std::make_shared only,
// because reads that run in the background share it.
class ArrowFile final : public arrow::io::RandomAccessFile {
 public:
  explicit ArrowFile(std::unique_ptr<InputFile> file) : file_(std::move(file)) {}

  using RandomAccessFile::ReadAt;
  arrow::Result<int64_t> GetSize() override { return size(); }
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override;

  arrow::Result<int64_t> Read(int64_t bytes, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override;
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Status Seek(int64_t position) override;
  arrow::Status Close() override;
  bool closed() const override { return closed_; }

 private:
  int64_t size() const { return static_cast<int64_t>(file_->size()); }

  const std::unique_ptr<InputFile> file_;
  int64_t position_ = 0;
  bool closed_ = false;
};

// Returns the error with which a read of an ArrowFile failed, or OK if the status has another
// cause, as a file whose contents are not valid.
absl::Status read_error(const arrow::Status& status);

}  // namespace trireme::internal
