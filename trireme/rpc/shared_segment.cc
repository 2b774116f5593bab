#include "trireme/rpc/shared_segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"

// A segment is a memfd: a file in memory without a name. A process of the same user finds it as
// /proc/PID/fd/FD. These numbers mean something else on another machine, in another container and
// after the process has ended, so the handle also has the identity of the running system and a
// random cookie, which stands in the first page of the segment. A segment that passes all checks
// is the one that the handle was made for. Behind the cookie is a word that is zero until the owner
// closes the segment.

namespace trireme {
namespace {

constexpr char kHandleStart[] = "memfd";
constexpr char kMemfdName[] = "trireme";
constexpr uint64_t kHeaderBytes = 4096;              // keeps the memory behind it aligned
constexpr uint64_t kMaxSegment = uint64_t{1} << 47;  // more than a process can map
constexpr int kSegmentSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct SegmentHandle {
  std::string boot_id;
  int64_t pid = 0;
  int fd = -1;
  uint64_t bytes = 0;
  uint64_t cookie[2] = {};

  std::string to_string() const {
    return absl::StrCat(kHandleStart, " ", boot_id, " ", pid, " ", fd, " ", bytes, " ",
                        absl::Hex(cookie[0]), " ", absl::Hex(cookie[1]));
  }
};

std::optional<SegmentHandle> parse_segment_handle(const std::string& text) {
  if (text.size() >= SharedSegment::kMaxHandle) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text, ' ');
  SegmentHandle handle;
  if (fields.size() != 7 || fields[0] != kHandleStart || fields[1].empty() ||
      !absl::SimpleAtoi(fields[2], &handle.pid) || !absl::SimpleAtoi(fields[3], &handle.fd) ||
      !absl::SimpleAtoi(fields[4], &handle.bytes) ||
      !absl::SimpleHexAtoi(fields[5], &handle.cookie[0]) ||
      !absl::SimpleHexAtoi(fields[6], &handle.cookie[1])) {
    return std::nullopt;
  }
  handle.boot_id = fields[1];
  if (handle.pid <= 0 || handle.fd < 0) return std::nullopt;
  return handle;
}

// Returns the length of the file: the header and the memory, in whole pages of 4096 bytes.
uint64_t segment_file_bytes(uint64_t bytes) {
  return kHeaderBytes + (bytes + kHeaderBytes - 1) / kHeaderBytes * kHeaderBytes;
}

// Returns the word by which the owner of a segment says that it has closed it.
std::atomic_ref<uint64_t> closed_word(std::byte* data) {
  auto* const header = reinterpret_cast<uint64_t*>(data - kHeaderBytes);
  return std::atomic_ref<uint64_t>(header[std::size(SegmentHandle().cookie)]);
}

absl::Status no_segment_memory(uint64_t bytes, const std::string& why) {
  return make_status(ErrorCode::kResourceExhausted,
                     absl::StrCat("a shared segment of ", bytes, " bytes cannot be created: ", why,
                                  "; free memory or share less"));
}

// Gives the file its length and takes the memory for it, as long as there is enough. The kernel
// promises more than there is: when it has none left, it ends processes instead of failing.
absl::Status reserve_segment(int fd, uint64_t bytes) {
  constexpr uint64_t kPiece = uint64_t{16} << 20;   // a signal restarts a piece, not the whole
  constexpr uint64_t kSpared = uint64_t{64} << 20;  // left for others
  const uint64_t length = segment_file_bytes(bytes);
  if (length + kSpared > available_memory()) {
    return no_segment_memory(bytes, absl::StrCat(available_memory(), " bytes are available"));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && length > limit.rlim_cur) {
    return no_segment_memory(bytes, "it exceeds the limit for files of this process (ulimit -f)");
  }
  if (ftruncate(fd, static_cast<off_t>(length)) != 0) {
    return no_segment_memory(bytes, std::strerror(errno));
  }
  for (uint64_t done = 0; done < length;) {
    const uint64_t piece = std::min(kPiece, length - done);
    // Others take memory at the same time.
    if (piece + kSpared > available_memory()) {
      return no_segment_memory(bytes, "other processes have taken the memory meanwhile");
    }
    const int error = posix_fallocate(fd, static_cast<off_t>(done), static_cast<off_t>(piece));
    if (error == EINTR) continue;
    if (error != 0) return no_segment_memory(bytes, std::strerror(error));
    done += piece;
  }
  return absl::OkStatus();
}

// Maps the whole file and its page tables, so that the first use of a page costs no fault.
std::byte* map_segment(int fd, uint64_t bytes) {
  void* const start = mmap(nullptr, segment_file_bytes(bytes), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_POPULATE, fd, 0);
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

absl::Status cannot_open_segment(ErrorCode code, const SegmentHandle& handle,
                                 const std::string& why) {
  return make_status(
      code, absl::StrCat("the shared segment of process ", handle.pid, " cannot be opened: ", why));
}

absl::Status segment_system_error(const SegmentHandle& handle, const char* call) {
  const int error = errno;
  if (error == ENOENT || error == ESRCH || error == ENXIO) {
    return cannot_open_segment(ErrorCode::kNotFound, handle,
                               "the process has ended or has closed it");
  }
  if (error == EACCES || error == EPERM) {
    return cannot_open_segment(ErrorCode::kUnavailable, handle,
                               "the process belongs to another user, whose files this process may "
                               "not open; run the tasks as one user");
  }
  return cannot_open_segment(ErrorCode::kUnavailable, handle,
                             absl::StrCat(call, " failed: ", std::strerror(error)));
}

// Opens the file of another process. Looks at its name before, since the number may be that of a
// file of any kind by now, and to open a device can have effects.
absl::StatusOr<int> open_segment_file(const SegmentHandle& handle) {
  const std::string path = absl::StrCat("/proc/", handle.pid, "/fd/", handle.fd);
  const std::string expected = absl::StrCat("/memfd:", kMemfdName);
  std::string target(256, '\0');
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return segment_system_error(handle, "readlink");
  if (std::string_view(target).substr(0, expected.size()) != expected) {
    return cannot_open_segment(ErrorCode::kNotFound, handle,
                               absl::StrCat("its file ", handle.fd, " is not a shared segment"));
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return segment_system_error(handle, "open");
  return fd;
}

// Checks that the file belongs to the user of this process, and that the whole declared size can be
// mapped without a SIGBUS, now and later. The kernel lets a privileged process open the files of
// all users. The pages of a memfd with MFD_HUGETLB can be removed in spite of all seals, and are
// then not replaced if there are no more huge pages.
absl::Status check_segment_file(int fd, const SegmentHandle& handle) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSegmentSeals) != kSegmentSeals) {
    return cannot_open_segment(ErrorCode::kUnavailable, handle, "its length can still change");
  }
  struct stat file {};
  if (fstat(fd, &file) != 0) return segment_system_error(handle, "fstat");
  if (file.st_uid != geteuid()) {
    return cannot_open_segment(
        ErrorCode::kUnavailable, handle,
        absl::StrCat("it belongs to user ", file.st_uid, ", and this process runs as user ",
                     geteuid(), "; run the tasks as one user"));
  }
  struct statfs system {};
  if (fstatfs(fd, &system) != 0) return segment_system_error(handle, "fstatfs");
  if (system.f_type != TMPFS_MAGIC) {
    return cannot_open_segment(ErrorCode::kUnavailable, handle,
                               "its file is not of the type that Trireme creates");
  }
  if (handle.bytes == 0 || handle.bytes > kMaxSegment ||
      static_cast<uint64_t>(file.st_size) != segment_file_bytes(handle.bytes)) {
    return cannot_open_segment(
        ErrorCode::kNotFound, handle,
        absl::StrCat("the handle declares ", handle.bytes, " bytes, and the file of ", file.st_size,
                     " bytes does not have this size"));
  }
  if (static_cast<uint64_t>(file.st_blocks) * 512 < static_cast<uint64_t>(file.st_size)) {
    return cannot_open_segment(ErrorCode::kUnavailable, handle, "its memory is not reserved");
  }
  return absl::OkStatus();
}

}  // namespace

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

SharedSegment::SharedSegment(int fd, std::byte* mapping, uint64_t bytes, std::string handle)
    : fd_(fd), data_(mapping + kHeaderBytes), size_(bytes), handle_(std::move(handle)) {}

SharedSegment::~SharedSegment() {
  if (fd_ >= 0) closed_word(data_).store(1, std::memory_order_release);
  munmap(data_ - kHeaderBytes, segment_file_bytes(size_));
  if (fd_ >= 0) close(fd_);
}

bool SharedSegment::is_closed() const {
  return closed_word(data_).load(std::memory_order_acquire) != 0;
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::create(uint64_t bytes) {
  if (bytes == 0) return invalid_argument("a shared segment must have at least one byte");
  if (bytes > kMaxSegment) return no_segment_memory(bytes, "no process can map as much");
  SegmentHandle handle{.boot_id = boot_id(), .pid = getpid(), .bytes = bytes};
  if (handle.boot_id.empty()) {
    return make_status(ErrorCode::kUnavailable,
                       "shared memory cannot be used: /proc is not mounted");
  }
  FileDescriptor file(memfd_create(kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return no_segment_memory(bytes, std::strerror(errno));
  handle.fd = file.get();
  TRIREME_RETURN_IF_ERROR(reserve_segment(file.get(), bytes));
  if (fcntl(file.get(), F_ADD_SEALS, kSegmentSeals) != 0 ||
      getrandom(handle.cookie, sizeof(handle.cookie), 0) != sizeof(handle.cookie)) {
    return make_status(ErrorCode::kUnavailable,
                       absl::StrCat("a shared segment cannot be sealed: ", std::strerror(errno)));
  }
  std::byte* const mapping = map_segment(file.get(), bytes);
  if (mapping == nullptr) return no_segment_memory(bytes, std::strerror(errno));
  std::memcpy(mapping, handle.cookie, sizeof(handle.cookie));
  return std::shared_ptr<SharedSegment>(
      new SharedSegment(file.release(), mapping, bytes, handle.to_string()));
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SharedSegment::open(const std::string& handle,
                                                                   uint64_t most_bytes) {
  const std::optional<SegmentHandle> parsed = parse_segment_handle(handle);
  if (!parsed) {
    return invalid_argument(
        absl::StrCat("'", handle.substr(0, kMaxHandle), "' is not a handle of a shared segment"));
  }
  if (parsed->boot_id != boot_id()) {
    return cannot_open_segment(ErrorCode::kNotFound, *parsed,
                               absl::StrCat("it is on another machine (boot id ", parsed->boot_id,
                                            ", here ", boot_id(), ")"));
  }
  if (parsed->bytes > most_bytes) {
    return cannot_open_segment(
        ErrorCode::kUnavailable, *parsed,
        absl::StrCat("it has ", parsed->bytes, " bytes, and the limit is ", most_bytes));
  }
  TRIREME_ASSIGN_OR_RETURN(const int fd, open_segment_file(*parsed));
  const FileDescriptor file(fd);
  TRIREME_RETURN_IF_ERROR(check_segment_file(fd, *parsed));
  std::byte* const mapping = map_segment(fd, parsed->bytes);
  if (mapping == nullptr) return segment_system_error(*parsed, "mmap");
  // Owns the mapping from here on.
  std::shared_ptr<SharedSegment> segment(new SharedSegment(-1, mapping, parsed->bytes, handle));
  if (std::memcmp(mapping, parsed->cookie, sizeof(parsed->cookie)) != 0) {
    return cannot_open_segment(ErrorCode::kNotFound, *parsed,
                               "another segment has its place, so the process is another one, or "
                               "this process sees the process ids of another container");
  }
  return segment;
}

}  // namespace trireme
