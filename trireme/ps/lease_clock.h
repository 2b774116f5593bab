#pragma once

#include <algorithm>
#include <cstdint>

#include "trireme/base/clock.h"
#include "trireme/base/peer_clock.h"

namespace trireme {

// Asks one server for leases, on behalf of a client, in terms of the server's own clock.
//
// A request for a lease may be executed long after it was sent: it waits in the socket of a server
// that is frozen, or in the network. So a request names the end of the lease on the server's clock,
// which the server sends with each answer, and a request that is late asks for a lease that is
// over. Otherwise it would revive the lease of a client that relies on the lease's end.
//
// The end is a lower bound (PeerClock): a lease that is requested until time t of this process has
// ended at the server by t. Not thread-safe.
class LeaseClock {
 public:
  // Notes an answer that arrived at `received` and carries the server's clock.
  void note_answer(Time received, int64_t server_milliseconds) {
    clock_.note_answer(received, server_milliseconds);
  }
  // Returns true once an answer was noted.
  bool known() const { return clock_.known(); }

  // Returns a lower bound of the server's clock at `time`. An answer must have been noted.
  int64_t at(Time time) const { return clock_.at(time); }
  // Returns the end, on the server's clock, of a lease that is requested at `now`, and remembers
  // the request. An answer must have been noted.
  int64_t request(Time now, Duration lease) {
    run_out_ = std::max(run_out_, now + lease);
    return clock_.at(now + lease);
  }

  // Returns the time of this process by which all leases requested so far have ended at the server,
  // if both clocks run at the same rate. Add a margin for the drift since the last answer.
  Time run_out() const { return run_out_; }

 private:
  PeerClock clock_;
  Time run_out_ = {};
};

}  // namespace trireme
