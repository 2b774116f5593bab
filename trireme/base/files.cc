#include "trireme/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

ErrorCode code_of_errno(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EEXIST:
      return ErrorCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
      return ErrorCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorCode::kResourceExhausted;
    case ENOTEMPTY:
      return ErrorCode::kFailedPrecondition;
    case EINVAL:
    case EISDIR:
    case ENAMETOOLONG:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kUnavailable;
  }
}

// Bytes in the page cache after which a file that is written is synced. Without this, the sync at
// its end would take so long that the disk seems to hang.
constexpr uint64_t kMostUnsynced = uint64_t{64} << 20;

// Returns the error of a system call: "cannot create '/a/b': No space left on device".
absl::Status file_error(const char* verb, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return make_status(
      code_of_errno(error),
      absl::StrCat("cannot ", verb, " '", path, "': ", std::strerror(error),
                   full ? "; free space there, or use a folder on another file system" : ""));
}

// Opens the file of a descriptor again with O_DIRECT. Returns -1 where that is not supported. Going
// through /proc opens the same file, even if the path now belongs to another one.
int open_direct(int number, int mode) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", number);
  return ::open(path, mode | O_DIRECT | O_CLOEXEC);
}

bool is_aligned(uint64_t offset, const void* data, size_t bytes) {
  return (offset | reinterpret_cast<uintptr_t>(data) | bytes) % kDirectBlock == 0;
}

// A file with one descriptor that uses the page cache and, if possible, one that does not.
class LocalFile {
 public:
  LocalFile(std::string path, int number, int mode)
      : path_(std::move(path)),
        plain_(number),
        direct_(open_direct(number, mode)),
        use_direct_(direct_.valid()) {}

  // Calls `transfer(descriptor, memory, bytes, offset)`, which is pread or pwrite, until all bytes
  // are done.
  template <class Memory, class Transfer>
  absl::Status transfer_all(const char* verb, uint64_t offset, Memory* data, size_t bytes,
                            Transfer transfer) {
    while (bytes > 0) {
      const bool direct = is_direct(offset, data, bytes);
      const ssize_t done =
          transfer((direct ? direct_ : plain_).get(), data, bytes, static_cast<off_t>(offset));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && direct) {
        use_direct_.store(false, std::memory_order_relaxed);  // It needs larger blocks.
        continue;
      }
      if (done < 0) return file_error(verb, path_, errno);
      if (done == 0) {
        return make_status(ErrorCode::kDataLoss,
                           absl::StrCat("file '", path_, "' ends at byte ", offset, ", but ", bytes,
                                        " more bytes were expected"));
      }
      data += done;
      offset += static_cast<uint64_t>(done);
      bytes -= static_cast<size_t>(done);
    }
    return absl::OkStatus();
  }

 protected:
  // Returns true if such an access bypasses the page cache.
  bool is_direct(uint64_t offset, const void* data, size_t bytes) const {
    return use_direct_.load(std::memory_order_relaxed) && is_aligned(offset, data, bytes);
  }

  const std::string path_;
  FileDescriptor plain_;
  FileDescriptor direct_;

 private:
  std::atomic<bool> use_direct_;
};

class LocalOutputFile final : public OutputFile, LocalFile {
 public:
  LocalOutputFile(std::string path, int number) : LocalFile(std::move(path), number, O_WRONLY) {}

  absl::Status write(uint64_t offset, const void* data, size_t bytes) override {
    TRIREME_RETURN_IF_ERROR(
        transfer_all("write", offset, static_cast<const char*>(data), bytes, ::pwrite));
    if (is_direct(offset, data, bytes)) return absl::OkStatus();
    // Only the thread that crosses the limit waits for the device.
    if (unsynced_.fetch_add(bytes) + bytes < kMostUnsynced) return absl::OkStatus();
    unsynced_ = 0;
    return fdatasync(plain_.get()) == 0 ? absl::OkStatus() : file_error("sync", path_, errno);
  }

  absl::Status finish(uint64_t bytes) override {
    if (ftruncate(plain_.get(), static_cast<off_t>(bytes)) != 0) {
      return file_error("set the length of", path_, errno);
    }
    if (fsync(plain_.get()) != 0) return file_error("sync", path_, errno);
    direct_.close_now();
    if (const int error = plain_.close_now()) return file_error("close", path_, error);
    return absl::OkStatus();
  }

 private:
  std::atomic<uint64_t> unsynced_ = 0;  // Bytes in the page cache since the last sync.
};

class LocalInputFile final : public InputFile, LocalFile {
 public:
  LocalInputFile(std::string path, int number, uint64_t size)
      : LocalFile(std::move(path), number, O_RDONLY), size_(size) {}

  uint64_t size() const override { return size_; }

  absl::Status read(uint64_t offset, void* data, size_t bytes) override {
    return transfer_all("read", offset, static_cast<char*>(data), bytes, ::pread);
  }

 private:
  const uint64_t size_;
};

class LocalFiles final : public Files {
 public:
  absl::StatusOr<std::unique_ptr<OutputFile>> create(const std::string& path) override {
    const int number = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (number < 0) return file_error("create", path, errno);
    return std::make_unique<LocalOutputFile>(path, number);
  }

  absl::StatusOr<std::unique_ptr<InputFile>> open(const std::string& path, Links links) override {
    // Opening a pipe would block without O_NONBLOCK, which has no effect on a regular file.
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    const int number = ::open(path.c_str(), flags | (links == Links::kReject ? O_NOFOLLOW : 0));
    if (number < 0) return file_error("open", path, errno);
    struct stat status;
    if (fstat(number, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(number);
      return invalid_argument(absl::StrCat("'", path, "' is not a regular file"));
    }
    return std::make_unique<LocalInputFile>(path, number, static_cast<uint64_t>(status.st_size));
  }

  absl::Status make_directory(const std::string& path) override {
    return mkdir(path.c_str(), 0777) == 0 ? absl::OkStatus()
                                          : file_error("create the folder", path, errno);
  }

  absl::Status sync_directory(const std::string& path) override {
    const FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) return file_error("open the folder", path, errno);
    // Some shared file systems make names durable at once, and reject fsync of a folder.
    if (fsync(folder.get()) == 0 || errno == EINVAL || errno == ENOTSUP) {
      return absl::OkStatus();
    }
    return file_error("sync the folder", path, errno);
  }

  absl::Status rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus()
                                                   : file_error("rename", from, errno);
  }

  absl::Status remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : file_error("remove", path, errno);
  }

  absl::Status remove_directory(const std::string& path) override {
    if (rmdir(path.c_str()) == 0) return absl::OkStatus();
    return file_error("remove the folder", path, errno == EEXIST ? ENOTEMPTY : errno);
  }

  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) return file_error("list the folder", path, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    const int error = errno;
    closedir(folder);
    if (error != 0) return file_error("list the folder", path, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<bool> exists(const std::string& path) override {
    struct stat status;
    if (stat(path.c_str(), &status) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return file_error("look at", path, errno);
  }

  absl::StatusOr<uint64_t> size(const std::string& path) override {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return file_error("look at", path, errno);
    return static_cast<uint64_t>(status.st_size);
  }
};

}  // namespace

Files& Files::local() {
  static LocalFiles files;
  return files;
}

absl::Status Files::make_directories(const std::string& path) {
  if (path.empty()) return invalid_argument("the path of a folder is empty");
  // Each turn handles a prefix of the path that ends before a slash, or the whole path.
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (prefix.back() == '/') continue;  // A double slash, or one at the end.
    TRIREME_ASSIGN_OR_RETURN(const bool found, exists(prefix));
    if (!found) {
      const absl::Status made = make_directory(prefix);
      if (!made.ok() && error_code(made) != ErrorCode::kAlreadyExists) return made;
    }
    // A folder that exists may have been made by a process that was killed before the sync. But the
    // folder above it may belong to another user, who made this one.
    const size_t slash = prefix.rfind('/');
    const absl::Status synced = sync_directory(slash == std::string::npos ? "."
                                               : slash == 0               ? "/"
                                                            : prefix.substr(0, slash));
    if (!found && !synced.ok()) return synced;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Files::read_text(const std::string& path, uint64_t most, Links links) {
  TRIREME_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> file, open(path, links));
  if (file->size() > most) {
    return invalid_argument(absl::StrCat("file '", path, "' has ", file->size(), " bytes; at most ",
                                         most, " are allowed"));
  }
  std::string text(file->size(), 0);
  TRIREME_RETURN_IF_ERROR(file->read(0, text.data(), text.size()));
  return text;
}

absl::Status Files::write_text(const std::string& path, std::string_view text) {
  TRIREME_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, create(path));
  TRIREME_RETURN_IF_ERROR(file->write(0, text.data(), text.size()));
  return file->finish(text.size());
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\0", 2)) == std::string::npos;
}

std::optional<std::string> resolve_inside(const std::string& path, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path resolved = fs::absolute(path, error);
  // The first pass removes `missing/..` from the path, but does not resolve links behind it.
  for (int pass = 0; pass < 2 && !error; ++pass) resolved = fs::weakly_canonical(resolved, error);
  const fs::path outer(folder);
  if (error || path.find('\0') != std::string::npos ||
      std::mismatch(outer.begin(), outer.end(), resolved.begin(), resolved.end()).first !=
          outer.end()) {
    return std::nullopt;
  }
  return resolved.string();
}

std::string join_path(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, folder.empty() || folder.back() == '/' ? "" : "/", name);
}

}  // namespace trireme
