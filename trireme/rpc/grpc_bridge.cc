#include "trireme/rpc/grpc_bridge.h"

#include <c10/core/StorageImpl.h>
#include <grpc/support/log.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "trireme/base/logging.h"
#include "trireme/base/rate_limit.h"
#include "trireme/base/sanitizer.h"
#include "trireme/rpc/flow_control.h"

#if defined(TRIREME_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace trireme::internal {
namespace {

// Routes gRPC's log lines to Trireme's log.
void route_log() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    if (line->severity != GPR_LOG_SEVERITY_ERROR) return;
    // A failed handshake has no call that could report it, so only this line gives the reason. The
    // number of lines is limited, because any peer can cause them.
    static RateLimit* handshakes = new RateLimit(5, std::chrono::seconds(10));
    if (std::strncmp(line->message, "Handshake failed", 16) == 0 && handshakes->admit()) {
      log_warning("a TLS connection was refused: ", line->message);
      return;
    }
    // A failed assertion aborts the process, and its line is the only trace.
    const bool fatal = std::strncmp(line->message, "assertion failed", 16) == 0;
    log(fatal ? LogLevel::kError : LogLevel::kDebug, "gRPC: ", line->file, ":", line->line, ": ",
        line->message);
  });
}

// Allocates and frees the largest block that glibc would still map. That makes glibc raise its own
// thresholds. Unlike mallopt() it does not override settings of the user or of a server
// (configure_memory_for_server).
void keep_freed_memory() {
  constexpr size_t kLargestMapped = (32 << 20) - (64 << 10);
  void* volatile block = std::malloc(kLargestMapped);
  std::free(block);
}

// A received frame that a reader which scatters keeps alive. The bytes of a short slice are inside
// the slice object, so the slices are kept as well. They are destroyed before the frame, so that
// the last reference is released by the ByteBuffer, inside gRPC: releasing memory may need gRPC's
// per-thread context, which a thread of ours does not have.
struct HeldFrame {
  grpc::ByteBuffer frame;
  std::vector<grpc::Slice> slices;
};

}  // namespace

void hand_over([[maybe_unused]] void* object) {
#if defined(TRIREME_TSAN)
  __tsan_release(object);
#endif
}

void take_over([[maybe_unused]] void* object) {
#if defined(TRIREME_TSAN)
  __tsan_acquire(object);
#endif
}

void* Tag::start() {
  hand_over(this);
  return this;
}

void Tag::dispatch(void* tag, bool ok) {
  auto* self = static_cast<Tag*>(tag);
  take_over(self);
  self->on_event(ok);
}

grpc::ByteBuffer to_byte_buffer(std::vector<Piece> frame) {
  std::vector<grpc::Slice> slices;
  slices.reserve(frame.size());
  for (Piece& piece : frame) {
    if (!piece.tensor.defined()) {
      slices.emplace_back(piece.bytes);
      continue;
    }
    // The slice refers to the tensor's storage until gRPC has written it to the socket. Nothing is
    // copied.
    auto* data = static_cast<uint8_t*>(const_cast<void*>(piece.tensor.const_data_ptr()));
    c10::StorageImpl* storage = piece.tensor.storage().unsafeGetStorageImpl();
    c10::raw::intrusive_ptr::incref(storage);
    hand_over(storage);
    slices.emplace_back(
        data + piece.offset, piece.size,
        [](void* held) {
          take_over(held);
          c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(held));
        },
        storage);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<size_t> read_frame(const grpc::ByteBuffer& frame, MessageReader& reader,
                                  size_t from) {
  const auto held = std::make_shared<HeldFrame>();
  if (!frame.Dump(&held->slices).ok()) {
    return make_status(ErrorCode::kInvalidArgument, "malformed message: no bytes");
  }
  if (reader.scatters()) held->frame = frame;
  size_t begin = 0;  // position of the slice in the frame
  for (const grpc::Slice& slice : held->slices) {
    const size_t skipped = std::min(slice.size(), from - std::min(from, begin));
    TRIREME_ASSIGN_OR_RETURN(const size_t used,
                             reader.read(slice.begin() + skipped, slice.size() - skipped, held));
    if (skipped + used < slice.size()) return begin + skipped + used;
    begin += slice.size();
  }
  return begin;
}

grpc::ByteBuffer grant_frame(uint64_t bytes) {
  const grpc::Slice slice(encode_grant(bytes));
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<uint64_t> read_grant(const grpc::ByteBuffer& frame) {
  if (frame.Length() != kGrantFrameBytes) return std::nullopt;
  grpc::Slice slice;
  if (!frame.DumpToSingleSlice(&slice).ok()) return std::nullopt;
  return decode_grant(std::string(reinterpret_cast<const char*>(slice.begin()), slice.size()));
}

grpc::ByteBuffer frame_of_numbers(const std::vector<uint64_t>& numbers) {
  const grpc::Slice slice(numbers.data(), numbers.size() * sizeof(uint64_t));
  return grpc::ByteBuffer(&slice, 1);
}

std::vector<uint64_t> read_numbers(const grpc::ByteBuffer& frame) {
  grpc::Slice slice;
  if (!frame.DumpToSingleSlice(&slice).ok()) return {};
  std::vector<uint64_t> numbers(slice.size() / sizeof(uint64_t));
  std::memcpy(numbers.data(), slice.begin(), numbers.size() * sizeof(uint64_t));
  return numbers;
}

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      encode_error_details(status));
}

bool made_by_peer(const grpc::Status& status) {
  return !status.error_details().empty();
}

absl::Status from_grpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return status_from_wire(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message(), status.error_details());
}

void prepare_grpc() {
  static const bool prepared = [] {
    route_log();
    keep_freed_memory();
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return true;
  }();
  (void)prepared;
}

gpr_timespec to_timespec(Time time) {
  if (time == Time::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto left =
      std::chrono::duration_cast<std::chrono::nanoseconds>(time - std::chrono::steady_clock::now());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

Time from_timespec(gpr_timespec time) {
  const gpr_timespec future = gpr_inf_future(time.clock_type);
  if (gpr_time_cmp(time, future) == 0) return Time::max();
  const gpr_timespec left = gpr_time_sub(time, gpr_now(time.clock_type));
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<Duration>(std::chrono::seconds(left.tv_sec) +
                                              std::chrono::nanoseconds(left.tv_nsec));
}

}  // namespace trireme::internal
