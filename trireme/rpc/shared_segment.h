#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace trireme {

// Returns the identity of the running system: all processes of one machine have the same, until it
// is started anew. Empty if it cannot be read.
std::string boot_id();

// Memory that processes of one machine share, if they run as the same user. It has no name in a
// file system and no limit but the memory of the machine, and it is gone with the last process that
// maps it. All of its pages exist from the start, it cannot be cut, and a page that its owner
// removes is replaced by the kernel, so that no access to it can raise SIGBUS.
//
// Another process opens it by its handle while the object that create() returned exists. The
// mapping lives as long as the object. Thread-safe; the contents are up to the users.
class SharedSegment {
 public:
  // Returns a new segment that is filled with zeros. Returns RESOURCE_EXHAUSTED if there is not
  // enough memory.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> create(uint64_t bytes);

  // Maps the segment of another process, or of this one. Returns NOT_FOUND if the segment is not on
  // this machine or is gone, UNAVAILABLE if it cannot be opened, and INVALID_ARGUMENT if the text
  // is not a handle. The message says why. Segments of more than `most_bytes` are not opened.
  static absl::StatusOr<std::shared_ptr<SharedSegment>> open(const std::string& handle,
                                                             uint64_t most_bytes = UINT64_MAX);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Returns the text that open() takes. It has less than kMaxHandle bytes.
  const std::string& handle() const { return handle_; }
  static constexpr size_t kMaxHandle = 160;

  // Returns the memory, whose address is a multiple of 4096.
  std::byte* data() const { return data_; }
  // Returns the number of bytes that create() was asked for.
  uint64_t size() const { return size_; }
  // Returns true if the object that create() returned is gone. A process that was killed has not
  // said so.
  bool is_closed() const;

 private:
  SharedSegment(int fd, std::byte* mapping, uint64_t bytes, std::string handle);

  const int fd_;  // open while others may open the segment; -1 if it belongs to another object
  std::byte* const data_;
  const uint64_t size_;
  const std::string handle_;
};

}  // namespace trireme
