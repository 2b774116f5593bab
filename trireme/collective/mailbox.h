#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/tensor/scattered_tensor.h"

namespace trireme::internal {

// A piece of a tensor that one member of a group sends to another.
struct Parcel {
  int from = 0;                   // rank of the sender
  uint64_t sequence = 0;          // number of the collective call (CollectiveCall::sequence)
  uint32_t slot = 0;              // place of the parcel in that call; the sender uses it once
  uint64_t call_fingerprint = 0;  // fingerprint() of the sender's call
  std::string call_description;   // describe_call() of the sender's call; may be empty after slot 0
  at::Tensor payload;             // contiguous; undefined for none
  // The bytes of a received payload, if they are still in pieces; then `payload` is on the meta
  // device.
  ScatteredTensor scattered;
  // Called when the parcel was taken out of the mailbox, or dropped with an error; may be null.
  std::function<void(const absl::Status&)> on_taken;
};

// Keeps the parcels that have arrived for one member until its collective call takes them. Bounded
// by the senders, each of which has only a few parcels under way. Thread-safe.
class Mailbox {
 public:
  // Adds a parcel. Rejects it if the mailbox is closed, or if it has one of the same sender, call
  // and slot.
  void deliver(Parcel parcel);

  // Removes the next parcel of a call, from any sender, and returns it. Blocks until there is one,
  // at most until the deadline or until the mailbox is closed.
  absl::StatusOr<Parcel> take(uint64_t sequence, Time deadline);

  // Drops all parcels, now and later, with this error, and wakes those that wait.
  void close(const absl::Status& cause);

 private:
  using Key = std::tuple<uint64_t, int, uint32_t>;  // call, sender, slot

  Mutex mutex_;
  CondVar changed_;
  std::map<Key, Parcel> parcels_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // OK while it is open
};

}  // namespace trireme::internal
