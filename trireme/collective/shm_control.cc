#include "trireme/collective/shm_control.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

// Each rank counts its waits in a word of its own. A wait is over when the words of all ranks have
// reached the count. So every word has one writer, and a rank that is ahead is ahead by one wait.
//
// A rank that waits first spins, because the others usually are a few microseconds behind. Then it
// offers its core to others, and at last it sleeps on the word of a rank that is missing. Spinning
// is left out if it would only hold up the missing rank: if there are more ranks than cores, or if
// that rank was on the same core at its last wait, as happens on a busy machine.
//
// A rank that sleeps is counted in `sleepers` of the missing rank, which wakes it only then. Both
// sides use sequentially consistent operations: either the missing rank sees the sleeper, or the
// kernel finds that the word has changed and does not let the sleeper sleep. Sleeps are short,
// because the failure of a group wakes nobody.
//
// There are two announcements per rank, used in turns. A rank that announces its call n + 2 has
// passed the first wait of call n + 1, so all others have left call n.

namespace trireme::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kShmSpin = microseconds(40);
constexpr int kShmYields = 20;
constexpr Duration kShmSleep = milliseconds(50);
constexpr size_t kLines = 128;  // processors fetch cache lines in pairs
constexpr size_t kMaxDescription = 256;

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "the kernel must be able to wait on the counters");

void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// The futex calls are those for words that several processes share.
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, Duration limit) {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count();
  const timespec relative{.tv_sec = nanoseconds / 1'000'000'000,
                          .tv_nsec = nanoseconds % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &relative, nullptr, 0);
}

// Copies a text into an array that another process reads: cut to its size, and ended by a zero.
template <size_t kSize>
void store_text(char (&array)[kSize], const std::string& text) {
  const size_t bytes = std::min(text.size(), kSize - 1);
  std::memcpy(array, text.data(), bytes);
  array[bytes] = '\0';
}

template <size_t kSize>
std::string load_text(const char (&array)[kSize]) {
  return std::string(array, strnlen(array, kSize));
}

}  // namespace

struct ShmControl::Announcement {
  uint64_t call_fingerprint;
  ShmPlace place;
  char description[kMaxDescription];
};

struct ShmControl::RankState {
  alignas(kLines) std::atomic<uint32_t> waits;
  std::atomic<int> core;                           // core on which the rank was at its last wait
  alignas(kLines) std::atomic<uint32_t> sleepers;  // ranks that sleep until `waits` changes
  alignas(kLines) Announcement announcements[2];
  alignas(kLines) char regions[kMaxRegions][SharedSegment::kMaxHandle];
};

uint64_t ShmControl::bytes(int ranks) {
  return sizeof(RankState) * ranks;
}

ShmControl::ShmControl(Group& group, std::shared_ptr<SharedSegment> segment)
    : group_(group),
      segment_(std::move(segment)),
      stop_(group.stop_token()),
      rank_(group.rank()),
      size_(group.size()),
      spin_(size_ <= usable_cores() ? kShmSpin : Duration(0)),
      seen_(size_) {}

ShmControl::RankState& ShmControl::state(int rank) const {
  return reinterpret_cast<RankState*>(segment_->data())[rank];
}

void ShmControl::announce(const CollectiveCall& call, ShmPlace place) {
  Announcement& own = state(rank_).announcements[++announced_ % 2];
  own.call_fingerprint = fingerprint(call);
  own.place = place;
  store_text(own.description, describe_call(call));
  compare_ = true;
}

absl::Status ShmControl::wait(const CollectiveCall& call) {
  RankState& own = state(rank_);
  const int core = sched_getcpu();
  own.core.store(core, std::memory_order_relaxed);
  own.waits.store(++waits_);
  if (own.sleepers.load() != 0) futex_wake_all(own.waits);
  std::fill(seen_.begin(), seen_.end(), false);
  seen_[rank_] = true;
  int yields = 0;
  for (Time spin_end = Time::min();;) {
    TRIREME_ASSIGN_OR_RETURN(const int missing, first_missing(call));
    if (missing < 0) break;
    const Time now = Clock::real().now();
    if (spin_end == Time::min()) spin_end = now + spin_;
    if (now < spin_end && state(missing).core.load(std::memory_order_relaxed) != core) {
      relax_core();
      continue;
    }
    TRIREME_RETURN_IF_ERROR(stopped());
    if (now >= call.deadline) return late_error(call);
    if (++yields <= kShmYields) {
      sched_yield();
    } else {
      sleep_until_arrival(missing, call.deadline);
    }
  }
  compare_ = false;
  return absl::OkStatus();
}

absl::StatusOr<int> ShmControl::first_missing(const CollectiveCall& call) {
  int missing = -1;
  for (int rank = 0; rank < size_; ++rank) {
    if (seen_[rank]) continue;
    if (!has_arrived(rank)) {
      if (missing < 0) missing = rank;
      continue;
    }
    if (compare_) TRIREME_RETURN_IF_ERROR(compare_with(rank, call));
    seen_[rank] = true;
  }
  return missing;
}

bool ShmControl::has_arrived(int rank) const {
  // The counters overflow, so only their difference counts.
  return static_cast<int32_t>(state(rank).waits.load(std::memory_order_acquire) - waits_) >= 0;
}

absl::Status ShmControl::compare_with(int rank, const CollectiveCall& call) const {
  const Announcement& theirs = state(rank).announcements[announced_ % 2];
  const Announcement& own = state(rank_).announcements[announced_ % 2];
  if (theirs.call_fingerprint == own.call_fingerprint) return absl::OkStatus();
  const absl::Status error =
      mismatch_error(call.sequence, group_.name_of(rank_), describe_call(call),
                     group_.name_of(rank), load_text(theirs.description));
  group_.fail(error);
  return error;
}

absl::Status ShmControl::stopped() const {
  if (!stop_.stop_requested()) return absl::OkStatus();
  const absl::Status failure = group_.failure();
  if (!failure.ok()) return failure;
  return make_status(ErrorCode::kCancelled, "the group of the collective call was ended");
}

absl::Status ShmControl::late_error(const CollectiveCall& call) const {
  std::string names;
  std::string task;
  for (int rank = 0; rank < size_; ++rank) {
    if (seen_[rank]) continue;
    if (task.empty()) task = group_.members()[rank].task.to_string();
    absl::StrAppend(&names, names.empty() ? "" : ", ", group_.name_of(rank));
  }
  return make_status(
      ErrorCode::kDeadlineExceeded,
      absl::StrCat("call ", call.sequence, " of ", group_.name_of(rank_), ", ", describe_call(call),
                   ", was not complete at its deadline: it waited for ", names,
                   compare_ ? ", which did not make this call" : ", which did not finish it",
                   "; look at what the task does, or raise call_timeout"),
      {.task = task});
}

void ShmControl::sleep_until_arrival(int rank, Time limit) const {
  RankState& theirs = state(rank);
  theirs.sleepers.fetch_add(1);
  const uint32_t seen = theirs.waits.load();
  const Time now = Clock::real().now();
  if (!has_arrived(rank) && limit > now) {
    futex_wait(theirs.waits, seen, std::min(kShmSleep, limit - now));
  }
  theirs.sleepers.fetch_sub(1);
}

ShmPlace ShmControl::place_of(int rank) const {
  return state(rank).announcements[announced_ % 2].place;
}

void ShmControl::publish_region(int region, const std::string& handle) {
  store_text(state(rank_).regions[region], handle);
}

std::string ShmControl::region_handle(int rank, int64_t region) const {
  if (region < 0 || region >= kMaxRegions) return "";
  return load_text(state(rank).regions[region]);
}

}  // namespace trireme::internal
