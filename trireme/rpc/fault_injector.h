#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"

namespace trireme {

// Selects calls and gives the probability of each fault, from 0 to 1.
struct FaultRule {
  std::string method = {};   // method that is called, "/trireme.Service/Method"; empty for all
  std::string peer = {};     // task that is called; empty for all
  double lose_request = 0;   // the request is never sent
  double lose_response = 0;  // the server executes the request, but its answer is dropped
  double duplicate = 0;      // the request is sent twice
  double delay = 0;          // the request is sent late, by up to longest_delay
  double reorder = 0;        // the request is sent after the next call
  double cut = 0;            // the stream breaks while the call is in flight; only for calls
                             // without a stop token of their own
  Duration longest_delay = std::chrono::milliseconds(50);  // limit for either request's delay
};

// The faults of one call.
struct Fault {
  bool lose_request = false;
  bool lose_response = false;
  bool duplicate = false;
  bool reorder = false;
  bool cut = false;
  Duration delay = {};            // delay of the request
  Duration duplicate_delay = {};  // delay of the second request after the first
  Duration cut_after = {};        // time from sending to the cut

  bool any() const {
    return lose_request || lose_response || duplicate || reorder || cut || delay > Duration::zero();
  }
};

// Injects faults into the calls of channels (ChannelOptions::faults), as a network would cause
// them. For tests. The n-th call to which a rule applies gets the same faults for the same seed and
// rules, regardless of how threads interleave. Thread-safe. Must be owned by a shared_ptr.
class FaultInjector : public std::enable_shared_from_this<FaultInjector> {
 public:
  FaultInjector(uint64_t seed, std::vector<FaultRule> rules);

  // Returns the faults of the next call, by the first rule that applies to it.
  Fault decide(const std::string& method, const std::string& peer);

  // Holds work back until the next call has been sent, but no longer than `at_most`.
  void hold(Work work, Duration at_most);
  // Runs the work that is held back, because a call has been sent.
  void passed();

  // Returns the number of calls that had a fault.
  uint64_t injected() const;

 private:
  struct Held {
    uint64_t id;
    Work work;
  };

  // Runs one piece of work if it is still held back.
  void release(uint64_t id);

  const uint64_t seed_;
  const std::vector<FaultRule> rules_;
  mutable Mutex mutex_;
  std::vector<uint64_t> decided_ ABSL_GUARDED_BY(mutex_);  // number of calls decided by each rule
  uint64_t injected_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_held_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme
