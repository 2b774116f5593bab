#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/files.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"

namespace trireme {

// Files in memory that know which of their bytes and names were synced, and can lose the others, as
// a machine that loses power may. They can also fail at a chosen operation, or stop there as if the
// process was killed. Header-only, so that tests below the module testing can use it. Thread-safe.
//
// Operations are the calls that change something: create, write, finish, make_directory,
// sync_directory, rename, remove and remove_directory. They are counted from 1.
class UnsyncedFiles final : public Files {
 public:
  // The unsynced things that are lost. A file system may persist names before it persists the bytes
  // of the files, and may persist changes of names out of order.
  enum class Loss {
    kNamesAndBytes,         // All changes.
    kBytes,                 // The bytes of files.
    kEarlierNamesAndBytes,  // The bytes of files, and all but the last change of each folder's
                            // names.
  };

  UnsyncedFiles() : root_(std::make_shared<Node>()) { root_->folder = true; }

  // Returns the number of operations so far.
  int operations() const {
    MutexLock lock(mutex_);
    return operations_;
  }
  // From operation `number` on, everything fails. A write that is stopped may leave a part.
  void stop_at(int number) {
    MutexLock lock(mutex_);
    stop_at_ = number;
  }
  // Operation `number` fails with this code, the ones after it do not.
  void fail_at(int number, ErrorCode code) {
    MutexLock lock(mutex_);
    fail_at_ = number;
    fail_code_ = code;
  }
  // Starts the process again after stop_at(). Nothing is lost, because the system has not stopped.
  void restart() {
    MutexLock lock(mutex_);
    stop_at_ = fail_at_ = 0;
    operations_ = 0;
  }
  // Starts the machine again after a loss of power.
  void lose_power(Loss loss) {
    restart();
    MutexLock lock(mutex_);
    lose(*root_, loss);
  }

  // Access to the bytes of a file, so that tests can damage them.
  std::string contents(const std::string& path) const {
    MutexLock lock(mutex_);
    const std::shared_ptr<Node> node = find(path);
    return node == nullptr ? "" : node->bytes;
  }
  void set_contents(const std::string& path, std::string bytes) {
    MutexLock lock(mutex_);
    find(path)->bytes = std::move(bytes);
  }

  absl::StatusOr<std::unique_ptr<OutputFile>> create(const std::string& path) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(count());
    const auto [folder, name] = parent(path);
    if (folder == nullptr) return missing(path);
    if (folder->names.contains(name)) return existing(path);
    const auto node = std::make_shared<Node>();
    folder->change({name});
    folder->names[name] = node;
    return std::make_unique<Output>(*this, node);
  }

  absl::StatusOr<std::unique_ptr<InputFile>> open(const std::string& path, Links) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(stopped());
    const std::shared_ptr<Node> node = find(path);
    if (node == nullptr || node->folder) return missing(path);
    return std::make_unique<Input>(path, node->bytes);
  }

  absl::Status make_directory(const std::string& path) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(count());
    const auto [folder, name] = parent(path);
    if (folder == nullptr) return missing(path);
    if (folder->names.contains(name)) return existing(path);
    const auto node = std::make_shared<Node>();
    node->folder = true;
    folder->change({name});
    folder->names[name] = node;
    return absl::OkStatus();
  }

  absl::Status sync_directory(const std::string& path) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(count());
    const std::shared_ptr<Node> node = find(path);
    if (node == nullptr || !node->folder) return missing(path);
    node->synced_names = node->names;
    node->last_changed.clear();
    return absl::OkStatus();
  }

  absl::Status rename(const std::string& from, const std::string& to) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(count());
    const auto [from_folder, from_name] = parent(from);
    const auto [to_folder, to_name] = parent(to);
    if (from_folder == nullptr || !from_folder->names.contains(from_name)) return missing(from);
    if (to_folder == nullptr) return missing(to);
    from_folder->change({from_name});
    to_folder->change(from_folder == to_folder ? std::vector{from_name, to_name}
                                               : std::vector{to_name});
    to_folder->names[to_name] = from_folder->names[from_name];
    from_folder->names.erase(from_name);
    return absl::OkStatus();
  }

  absl::Status remove(const std::string& path) override { return erase(path, false); }
  absl::Status remove_directory(const std::string& path) override { return erase(path, true); }

  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(stopped());
    const std::shared_ptr<Node> node = find(path);
    if (node == nullptr || !node->folder) return missing(path);
    std::vector<std::string> names;
    for (const auto& [name, child] : node->names) names.push_back(name);
    return names;
  }

  absl::StatusOr<bool> exists(const std::string& path) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(stopped());
    return find(path) != nullptr;
  }

  absl::StatusOr<uint64_t> size(const std::string& path) override {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(stopped());
    const std::shared_ptr<Node> node = find(path);
    if (node == nullptr) return missing(path);
    return node->bytes.size();
  }

 private:
  // A file or a folder, as it is now and as it would be after a loss of power.
  struct Node {
    bool folder = false;
    std::string bytes, synced_bytes;
    std::map<std::string, std::shared_ptr<Node>> names, synced_names;
    std::vector<std::string> last_changed;  // Names of the last unsynced change.

    void change(std::vector<std::string> changed) { last_changed = std::move(changed); }
  };

  class Output final : public OutputFile {
   public:
    Output(UnsyncedFiles& files, std::shared_ptr<Node> node)
        : files_(files), node_(std::move(node)) {}

    absl::Status write(uint64_t offset, const void* data, size_t bytes) override {
      MutexLock lock(files_.mutex_);
      const absl::Status status = files_.count();
      if (!status.ok()) bytes /= 2;
      if (files_.stop_at_ != 0 && files_.operations_ > files_.stop_at_) return status;
      if (node_->bytes.size() < offset + bytes) node_->bytes.resize(offset + bytes);
      std::copy_n(static_cast<const char*>(data), bytes, node_->bytes.begin() + offset);
      return status;
    }
    absl::Status finish(uint64_t bytes) override {
      MutexLock lock(files_.mutex_);
      TRIREME_RETURN_IF_ERROR(files_.count());
      node_->bytes.resize(bytes);
      node_->synced_bytes = node_->bytes;
      return absl::OkStatus();
    }

   private:
    UnsyncedFiles& files_;
    const std::shared_ptr<Node> node_;
  };

  class Input final : public InputFile {
   public:
    Input(std::string path, std::string bytes) : path_(std::move(path)), bytes_(std::move(bytes)) {}

    uint64_t size() const override { return bytes_.size(); }
    absl::Status read(uint64_t offset, void* data, size_t bytes) override {
      if (offset > bytes_.size() || bytes > bytes_.size() - offset) {
        return make_status(ErrorCode::kDataLoss, absl::StrCat("file '", path_, "' is too short"));
      }
      std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), bytes, static_cast<char*>(data));
      return absl::OkStatus();
    }

   private:
    const std::string path_, bytes_;
  };

  static absl::Status missing(const std::string& path) {
    return make_status(ErrorCode::kNotFound, absl::StrCat("there is no '", path, "'"));
  }
  static absl::Status existing(const std::string& path) {
    return make_status(ErrorCode::kAlreadyExists, absl::StrCat("'", path, "' exists"));
  }

  static void lose(Node& node, Loss loss) {
    node.bytes = node.synced_bytes;
    if (loss != Loss::kBytes) {
      const auto now = std::exchange(node.names, node.synced_names);
      for (const std::string& name : node.last_changed) {
        if (loss != Loss::kEarlierNamesAndBytes) break;
        node.names.erase(name);
        if (const auto found = now.find(name); found != now.end()) node.names.insert(*found);
      }
    }
    // The disk has this now.
    node.synced_names = node.names;
    node.last_changed.clear();
    for (const auto& [name, child] : node.names) lose(*child, loss);
  }

  absl::Status stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stop_at_ == 0 || operations_ < stop_at_) return absl::OkStatus();
    return make_status(ErrorCode::kUnavailable, "the test has stopped the file system");
  }
  absl::Status count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++operations_;
    if (operations_ == fail_at_) return make_status(fail_code_, "the test lets this fail");
    return stopped();
  }

  // Returns the node with this path, or null.
  std::shared_ptr<Node> find(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::shared_ptr<Node> node = root_;
    for (size_t begin = 0; begin < path.size() && node != nullptr;) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      begin = end + 1;
      if (name.empty() || name == ".") continue;
      const auto found = node->names.find(name);
      node = found == node->names.end() ? nullptr : found->second;
    }
    return node;
  }
  // Returns the folder of a path and the name in it. The folder is null if it does not exist.
  std::pair<std::shared_ptr<Node>, std::string> parent(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t slash = path.rfind('/');
    std::shared_ptr<Node> folder = find(slash == std::string::npos ? "" : path.substr(0, slash));
    if (folder != nullptr && !folder->folder) folder = nullptr;
    return {folder, path.substr(slash + 1)};
  }

  absl::Status erase(const std::string& path, bool folder) {
    MutexLock lock(mutex_);
    TRIREME_RETURN_IF_ERROR(count());
    const std::shared_ptr<Node> node = find(path);
    if (node == nullptr || node->folder != folder) return missing(path);
    if (!node->names.empty()) {
      return make_status(ErrorCode::kFailedPrecondition, absl::StrCat("'", path, "' is not empty"));
    }
    const auto [above, name] = parent(path);
    above->change({name});
    above->names.erase(name);
    return absl::OkStatus();
  }

  mutable Mutex mutex_;
  const std::shared_ptr<Node> root_;  // Everything below it is guarded by the mutex, too.
  int operations_ ABSL_GUARDED_BY(mutex_) = 0;
  int stop_at_ ABSL_GUARDED_BY(mutex_) = 0;  // 0 for never.
  int fail_at_ ABSL_GUARDED_BY(mutex_) = 0;  // 0 for never.
  ErrorCode fail_code_ ABSL_GUARDED_BY(mutex_) = ErrorCode::kUnavailable;
};

}  // namespace trireme
