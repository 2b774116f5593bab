#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// Says hello to servers, as Channel::hello does, and blocks until all have answered, at most until
// the deadline. After two seconds, and then in growing intervals, a log line names the servers that
// are missing and why each does not answer. The error at the deadline does so too. An error that
// waiting cannot fix ends the wait early: certificates on one side only, a rejected certificate, a
// role that may not call, another program at the address.
absl::StatusOr<std::vector<Hello>> connect_all(const std::vector<Channel*>& channels,
                                               Time deadline);

// Waits like connect_all(), but writes nothing to the log and does not remember the incarnations.
// Returns "" if all servers are up. If the deadline passes, returns one line of text that names the
// missing servers and the causes. For a master that reports to its client.
absl::StatusOr<std::string> find_missing(const std::vector<Channel*>& channels, Time deadline);

// The reason why a server cannot be reached, as far as a connection of our own shows it.
struct Diagnosis {
  std::string cause;      // the reason, and what to do about it
  bool is_final = false;  // true if waiting will not help, provided the next diagnosis agrees
};

// Finds out why a server cannot be reached. Blocks until `limit` at most.
Diagnosis diagnose(const Channel& channel, Time limit);
// Diagnoses the first few of the servers concurrently.
std::vector<Diagnosis> diagnose_all(const std::vector<const Channel*>& channels, Time limit);
// Returns "/job:ps/task:0 (HOST:PORT): cause; …" for the first few servers, and the number of the
// others. A server without a diagnosis gets "no answer".
std::string list_causes(const std::vector<const Channel*>& channels,
                        const std::vector<Diagnosis>& diagnoses);
// Returns the error for a final diagnosis.
absl::Status cannot_connect(const Channel& channel, const Diagnosis& diagnosis);

// The times at which to report on a long wait: after 2 s, then after 4 s more, 8 s more, and so on,
// at most a minute apart. Not thread-safe.
class ReportTimes {
 public:
  explicit ReportTimes(Time start) : next_(start + kFirst) {}
  // Returns the time of the next report.
  Time next() const { return next_; }
  // Returns true if a report is due now, and moves on to the next one.
  bool due(Time now);

 private:
  static constexpr Duration kFirst = std::chrono::seconds(2);
  static constexpr Duration kLongest = std::chrono::seconds(60);

  Time next_;
  Duration pause_ = kFirst;
};

}  // namespace trireme
