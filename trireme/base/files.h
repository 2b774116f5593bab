#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace trireme {

// Accesses whose offset, memory and length are multiples of this bypass the page cache.
inline constexpr size_t kDirectBlock = 4096;

// A file that is being written. Destroying it without finish() leaves the file as it is, without
// any guarantee about its contents. Thread-safe.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  // Writes all bytes at the offset. Different threads may write to different offsets at a time.
  virtual absl::Status write(uint64_t offset, const void* data, size_t bytes) = 0;
  // Sets the length of the file, writes it through to the device and closes it. The name of a new
  // file is durable only after sync_directory() of its folder.
  virtual absl::Status finish(uint64_t bytes) = 0;
};

// A file that is open for reading. Thread-safe.
class InputFile {
 public:
  virtual ~InputFile() = default;
  // Returns the length that the file had when it was opened.
  virtual uint64_t size() const = 0;
  // Reads exactly these bytes. Returns DATA_LOSS if the file ends before.
  virtual absl::Status read(uint64_t offset, void* data, size_t bytes) = 0;
};

// How open() treats a path whose last part is a symbolic link.
enum class Links { kFollow, kReject };

// The files that checkpoints are kept in. Local and shared file systems are used through local();
// tests have another implementation (testing/unsynced_files.h). Errors name the path: NOT_FOUND,
// ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED for a full disk or quota, UNAVAILABLE for
// the rest. Thread-safe.
class Files {
 public:
  virtual ~Files() = default;

  // Returns the file system of the machine. It uses O_DIRECT where the file system has it.
  static Files& local();

  // Creates a file. Returns ALREADY_EXISTS if the path exists, even as a link.
  virtual absl::StatusOr<std::unique_ptr<OutputFile>> create(const std::string& path) = 0;
  // Opens a regular file.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> open(const std::string& path,
                                                          Links links = Links::kFollow) = 0;

  // Creates one folder. Returns ALREADY_EXISTS if the path exists.
  virtual absl::Status make_directory(const std::string& path) = 0;
  // Makes the names in the folder durable: files that were created, renamed and removed.
  virtual absl::Status sync_directory(const std::string& path) = 0;
  // Renames a file and replaces the one that has the new name.
  virtual absl::Status rename(const std::string& from, const std::string& to) = 0;
  // Removes a file.
  virtual absl::Status remove(const std::string& path) = 0;
  // Removes an empty folder. Returns FAILED_PRECONDITION if it is not empty.
  virtual absl::Status remove_directory(const std::string& path) = 0;
  // Returns the names in the folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> list(const std::string& path) = 0;
  // Returns true if there is a file or a folder with this path.
  virtual absl::StatusOr<bool> exists(const std::string& path) = 0;
  // Returns the length of a file.
  virtual absl::StatusOr<uint64_t> size(const std::string& path) = 0;

  // Creates the folder and the folders above it that are missing, and makes all their names
  // durable.
  absl::Status make_directories(const std::string& path);
  // Returns the contents of a file. Returns INVALID_ARGUMENT if it has more than `most` bytes.
  absl::StatusOr<std::string> read_text(const std::string& path, uint64_t most,
                                        Links links = Links::kFollow);
  // Creates a file with these contents and finishes it.
  absl::Status write_text(const std::string& path, std::string_view text);
};

// Returns the number, rounded up to a multiple of kDirectBlock.
inline uint64_t whole_direct_blocks(uint64_t bytes) {
  return (bytes + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
}

// Returns true if a file in a folder can have this name: it has no slash and is not a dot or two.
bool is_plain_name(const std::string& name);
// Returns the absolute path without symbolic links and dots, or nullopt unless it is `folder` or
// lies inside of it. `folder` is such a path itself. The end of the path need not exist.
std::optional<std::string> resolve_inside(const std::string& path, const std::string& folder);
// Returns `folder` and `name` joined by a slash.
std::string join_path(const std::string& folder, const std::string& name);

}  // namespace trireme
