#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/files.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"

namespace trireme {

// Lets tests hold, or fail, the writing of a program's tensors, which is in the background, and
// fail the reading of files.
class HeldFiles final : public Files {
 public:
  absl::StatusOr<std::unique_ptr<OutputFile>> create(const std::string& path) override {
    if (path.find("program.safetensors") != std::string::npos) {
      MutexLock lock(mutex_);
      if (fails_) return make_status(ErrorCode::kResourceExhausted, path + ": the disk is full");
      while (held_) changed_.wait(mutex_);
    }
    return local_.create(path);
  }
  absl::StatusOr<std::unique_ptr<InputFile>> open(const std::string& path, Links links) override {
    TRIREME_ASSIGN_OR_RETURN(auto file, local_.open(path, links));
    MutexLock lock(mutex_);
    if (unreadable_.empty() || path.find(unreadable_) == std::string::npos) return file;
    return std::make_unique<UnreadableFile>(path, std::move(file), only_data_);
  }
  absl::Status make_directory(const std::string& path) override {
    return local_.make_directory(path);
  }
  absl::Status sync_directory(const std::string& path) override {
    return local_.sync_directory(path);
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    return local_.rename(from, to);
  }
  absl::Status remove(const std::string& path) override { return local_.remove(path); }
  absl::Status remove_directory(const std::string& path) override {
    return local_.remove_directory(path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    return local_.list(path);
  }
  absl::StatusOr<bool> exists(const std::string& path) override { return local_.exists(path); }
  absl::StatusOr<uint64_t> size(const std::string& path) override { return local_.size(path); }

  void fail(bool fails) {
    MutexLock lock(mutex_);
    fails_ = fails;
  }
  // Fails reads of files whose path has this part; none if it is empty. With `only_data`, the
  // header of a file can be read.
  void fail_reads(const std::string& part, bool only_data = false) {
    MutexLock lock(mutex_);
    unreadable_ = part;
    only_data_ = only_data;
  }
  void hold(bool held) {
    MutexLock lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }

 private:
  class UnreadableFile final : public InputFile {
   public:
    UnreadableFile(std::string path, std::unique_ptr<InputFile> file, bool only_data)
        : path_(std::move(path)), file_(std::move(file)), only_data_(only_data) {}
    uint64_t size() const override { return file_->size(); }
    absl::Status read(uint64_t offset, void* data, size_t bytes) override {
      if (only_data_ && offset == 0) return file_->read(offset, data, bytes);
      return make_status(ErrorCode::kUnavailable,
                         "cannot read '" + path_ + "': Input/output error");
    }

   private:
    const std::string path_;
    const std::unique_ptr<InputFile> file_;
    const bool only_data_;
  };

  Files& local_ = Files::local();
  Mutex mutex_;
  CondVar changed_;
  bool fails_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::string unreadable_ ABSL_GUARDED_BY(mutex_);
  bool only_data_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trireme
