#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/commands.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/testing/network.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/wait_until.h"

namespace trireme {

struct ClientProcessOptions {
  std::string job = {};  // id of the job; empty for a new job
  bool resume = false;   // true to continue with the values of the last generation
  bool keep = false;     // true to keep the values when the program ends in order
  std::chrono::milliseconds lease = std::chrono::seconds(3);
  // Number of closures after which the program ends; 0 to go on until SIGTERM.
  int64_t closures = 0;
  int repeat = 1;  // number of times that each closure adds 1
  std::string certs = {};
  Network* network = nullptr;  // network in which the program runs on `host`; null for loopback
  std::string host = {};
};

// A client program (job_client.cc) that can be killed and frozen. It keeps a ledger by what it
// prints: the values that it found on the servers, how many updates it has sent at most, how many
// were certainly applied, and the values at its end. What it printed stays known after it was
// killed. Thread-safe.
class ClientProcess {
 public:
  ClientProcess(const ClusterSpec& spec, const ClientProcessOptions& options) {
    std::vector<std::string> command = {built_program("job_client"),
                                        spec.to_json(),
                                        options.certs,
                                        options.job,
                                        options.resume ? "resume" : "fresh",
                                        options.keep ? "keep" : "free",
                                        absl::StrCat(options.lease.count()),
                                        absl::StrCat(options.closures),
                                        absl::StrCat(options.repeat)};
    if (options.network != nullptr) {
      command = options.network->on_host(options.host, std::move(command));
    }
    const auto on_line = [this](const std::string& line) { note(line); };
    process_ = value_or_throw(Subprocess::start({.argv = std::move(command),
                                                 .on_stdout = on_line,
                                                 .on_stderr = on_line,
                                                 .null_stdin = true}));
  }

  void freeze() { process_->send_signal(SIGSTOP); }
  void thaw() { process_->send_signal(SIGCONT); }
  void kill() {
    process_->send_signal(SIGKILL);
    process_->wait(after(kLimit));
  }
  // Returns true if the program ends within `timeout`.
  bool ends_within(Duration timeout) { return process_->wait(after(timeout)).has_value(); }

  // Blocks until the program has found or made its variable, and returns the number of updates of
  // each server's shard by then. Throws Error if it does not come that far.
  std::vector<int64_t> begin() {
    return wait_for("begin", [this]() -> std::optional<std::vector<int64_t>> {
      MutexLock lock(mutex_);
      return begin_;
    });
  }
  // Blocks until the program has ended in order, and returns the number of updates of each shard
  // at its end. Asks it to end first if `stop` is true. Throws Error if it fails.
  std::vector<int64_t> end(bool stop = false) {
    if (stop) process_->send_signal(SIGTERM);
    const std::vector<int64_t> end =
        wait_for("end", [this]() -> std::optional<std::vector<int64_t>> {
          MutexLock lock(mutex_);
          return end_;
        });
    // It leaves its job after it has printed its last line.
    const auto status = process_->wait(after(kLimit));
    if (status && status->ok()) return end;
    throw Error(ErrorCode::kInternal,
                absl::StrCat("the client program did not end in order: ",
                             status ? status->to_string() : "it still runs", "\n", text()));
  }
  // Blocks until the program has ended with an error, and returns "CODE: text".
  std::string error() {
    process_->wait(after(2 * kLimit));
    MutexLock lock(mutex_);
    return error_.empty() ? absl::StrCat("no error; it wrote:\n", text_) : error_;
  }

  // Returns an upper limit for the number of updates of each shard that its closures have made.
  int64_t sent() const {
    MutexLock lock(mutex_);
    return sent_;
  }
  // Returns the number of updates of each shard that were acknowledged.
  int64_t done() const {
    MutexLock lock(mutex_);
    return done_;
  }
  // Returns all that it has written, except for its ledger.
  std::string text() const {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  static std::vector<int64_t> numbers(std::istringstream& line) {
    std::vector<int64_t> numbers;
    for (int64_t number; line >> number;) numbers.push_back(number);
    return numbers;
  }

  void note(const std::string& line) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    MutexLock lock(mutex_);
    if (word == "begin") {
      begin_ = numbers(words);
    } else if (word == "end") {
      end_ = numbers(words);
    } else if (word == "sent") {
      words >> sent_;
    } else if (word == "done") {
      words >> done_;
    } else {
      if (word == "error") error_ = line.substr(word.size() + 1);
      text_ += line + "\n";
    }
  }

  template <typename Value>
  std::vector<int64_t> wait_for(const char* what, const Value& value) {
    wait_until([&] { return value().has_value() || !process_->is_running(); }, 2 * kLimit);
    // Once the process has ended, all its lines have been noted.
    if (const auto found = value()) return *found;
    throw Error(ErrorCode::kDeadlineExceeded, absl::StrCat("the client program has not printed '",
                                                           what, "'; it wrote:\n", text()));
  }

  mutable Mutex mutex_;
  std::optional<std::vector<int64_t>> begin_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<int64_t>> end_ ABSL_GUARDED_BY(mutex_);
  int64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string error_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Subprocess> process_;  // last, so that no line arrives after its end
};

}  // namespace trireme
