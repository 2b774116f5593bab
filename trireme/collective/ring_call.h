#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/collective/call.h"
#include "trireme/collective/group.h"
#include "trireme/collective/parcel_sender.h"

namespace trireme::internal {

// The parcels of one collective call, as one rank sees them. Checks that the other ranks make the
// same call. Used by one thread.
class RingCall {
 public:
  // The arguments must outlive the object.
  RingCall(Group& group, ParcelSender& sender, const CollectiveCall& call);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  int left() const { return (rank() + size() - 1) % size(); }
  int right() const { return (rank() + 1) % size(); }

  // Sends memory that does not change any more, at once. An undefined payload is sent as none.
  void send(int to, uint32_t slot, at::Tensor payload);
  // Sends memory of the caller's tensors, once only a few other parcels are under way. Call flush()
  // before the end of the call.
  void enqueue(int to, uint32_t slot, at::Tensor payload, bool urgent = false);
  // Blocks until all parcels have been taken.
  absl::Status flush();

  // Blocks until a parcel arrives, and returns it. The error names the ranks of `waits_for` that
  // have not made the call.
  absl::StatusOr<Parcel> next(const std::vector<int>& waits_for);
  // Blocks until a certain parcel arrives, and returns it. Keeps the others that arrive meanwhile.
  absl::StatusOr<Parcel> take(int from, uint32_t slot);

  // Returns the call's deadline, or a moment later if all of these ranks have made the call: then
  // one of them waits for the rank that is missing, and its error names that rank.
  Time time_to_give_up(const std::vector<int>& waits_for) const;
  // Returns the error for a call that was not complete in time. It names the ranks of `waits_for`
  // that have not made the call.
  absl::Status late(const std::vector<int>& waits_for) const;
  // Returns the error for a parcel that does not belong to the call, or has come before.
  absl::Status unexpected(const Parcel& parcel) const;

 private:
  Parcel make_parcel(uint32_t slot, at::Tensor payload) const;
  absl::StatusOr<Parcel> check(Parcel parcel);
  // Returns those of the ranks that have given no sign of having made the call.
  std::vector<int> silent(const std::vector<int>& ranks) const;

  Group& group_;
  ParcelSender& sender_;
  const CollectiveCall& call_;
  const std::string description_;
  const uint64_t fingerprint_;
  std::vector<bool> heard_;                           // true if a rank sent a parcel
  std::map<std::pair<int, uint32_t>, Parcel> early_;  // parcels to take later, by sender and slot
};

}  // namespace trireme::internal
