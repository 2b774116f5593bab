#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "trireme/base/clock.h"
#include "trireme/collective/group.h"

namespace trireme::internal {

// Sends the parcels of one member's calls, and keeps track of those that the receivers have not
// taken yet. An error of a send fails the group. Thread-safe.
class ParcelSender {
 public:
  // The group must outlive the sender.
  explicit ParcelSender(Group& group);
  // Blocks until no parcel is under way, for 5 s at most: a member that leaves after its last call
  // must not take along a parcel that another one still needs.
  ~ParcelSender();

  ParcelSender(const ParcelSender&) = delete;
  ParcelSender& operator=(const ParcelSender&) = delete;

  // Sends a parcel at once.
  void send(int to, Parcel parcel);
  // Sends a parcel when only a few others are under way. Parcels that are marked as urgent
  // overtake the others.
  void enqueue(int to, Parcel parcel, bool urgent);

  // Blocks until all parcels have been taken. Returns an error if one was lost, at the deadline, or
  // when the group fails.
  absl::Status flush(Time deadline);
  // Returns true if a rank has taken a parcel of this call.
  bool was_taken_by(int rank, uint64_t sequence) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trireme::internal
