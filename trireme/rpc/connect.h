#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// Says hello to servers, as Channel::hello does, and waits until the deadline for those that are
// not up yet. After two seconds, and then ever more rarely, one line of the log names those that
// are waited for and why each does not answer; so does the error at the deadline. What waiting
// cannot mend ends it at once: certificates that one side has and the other has not, a refused
// certificate, a role that may not call, another program at the address. Blocks.
absl::StatusOr<std::vector<Hello>> connect_all(const std::vector<Channel*>& channels,
                                               Time deadline);

// The same for somebody who tells others about it: writes nothing to the log, and when the deadline
// passes gives the servers that are missing and why, in one line for people. Empty: all are up.
absl::StatusOr<std::string> find_missing(const std::vector<Channel*>& channels, Time deadline);

// Why a server is not reached, as far as a connection of our own can tell.
struct Diagnosis {
  std::string cause;      // what is the matter, and what to do
  bool is_final = false;  // waiting will not mend it, if the next diagnosis says so, too
};

// Blocks until the limit at most.
Diagnosis diagnose(const Channel& channel, Time limit);
// Diagnoses the first few of many servers, side by side.
std::vector<Diagnosis> diagnose_all(const std::vector<const Channel*>& channels, Time limit);
// "/job:ps/task:0 (HOST:PORT): its cause; …", and how many more there are than diagnoses.
std::string list_causes(const std::vector<const Channel*>& channels,
                        const std::vector<Diagnosis>& diagnoses);
// The error for a final diagnosis.
absl::Status cannot_connect(const Channel& channel, const Diagnosis& diagnosis);

// When to tell about something that is being waited for: after 2 s, 4 s more, 8 s more, up to a
// minute.
class ReportTimes {
 public:
  explicit ReportTimes(Time start) : next_(start + kFirst) {}
  Time next() const { return next_; }
  // True once for each time.
  bool due(Time now);

 private:
  static constexpr Duration kFirst = std::chrono::seconds(2);
  static constexpr Duration kLongest = std::chrono::seconds(60);

  Time next_;
  Duration pause_ = kFirst;
};

}  // namespace trireme
