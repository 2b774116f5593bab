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

// Which calls suffer, and how likely each fault is, from 0 to 1.
struct FaultRule {
  std::string method = {};   // "/trireme.Service/Method"; empty: every one
  std::string peer = {};     // the task that is called; empty: every one
  double lose_request = 0;   // it is never sent
  double lose_response = 0;  // the server does it, the caller never hears of it
  double duplicate = 0;      // it arrives twice
  double delay = 0;          // it is sent up to longest_delay later
  double reorder = 0;        // the call after it overtakes it
  double cut = 0;            // the stream breaks while the call is under way
  Duration longest_delay = std::chrono::milliseconds(50);
};

// What befalls one call.
struct Fault {
  bool lose_request = false;
  bool lose_response = false;
  bool duplicate = false;
  bool reorder = false;
  bool cut = false;
  Duration delay = {};            // of the request
  Duration duplicate_delay = {};  // of its repetition
  Duration cut_after = {};

  bool any() const {
    return lose_request || lose_response || duplicate || reorder || cut || delay > Duration::zero();
  }
};

// Hurts the calls of the channels that have it (ChannelOptions::faults), as a network would. The
// same seed and rules decide the same for the n-th call to which a rule applies, whatever the
// threads do. Held by shared_ptr. For tests; a channel without one does not know that there is such
// a thing. Thread-safe.
class FaultInjector : public std::enable_shared_from_this<FaultInjector> {
 public:
  FaultInjector(uint64_t seed, std::vector<FaultRule> rules);

  // The first rule that applies decides.
  Fault decide(const std::string& method, const std::string& peer);

  // Keeps work until the next call has passed, at most for that long.
  void hold(Work work, Duration at_most);
  // Runs what was held: a call has passed.
  void passed();

  // How many calls suffered, of any fault.
  uint64_t injected() const;

 private:
  struct Held {
    uint64_t id;
    Work work;
  };

  void release(uint64_t id);

  const uint64_t seed_;
  const std::vector<FaultRule> rules_;
  mutable Mutex mutex_;
  std::vector<uint64_t> decided_ ABSL_GUARDED_BY(mutex_);  // of each rule
  uint64_t injected_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_held_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme
