#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"

namespace trireme {

// How a process ended.
struct ExitStatus {
  int code = 0;    // if no signal ended it
  int signal = 0;  // that ended it; 0: it exited

  bool ok() const { return code == 0 && signal == 0; }
  // What a shell makes of it: the code, or 128 and the signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  // "exit code 1", "killed by SIGKILL".
  std::string to_string() const;

  bool operator==(const ExitStatus&) const = default;
};

struct SubprocessOptions {
  using OnLine = std::function<void(const std::string& line)>;

  // A program without a slash is looked up in PATH.
  std::vector<std::string> argv;
  // Set on top of the variables of this process.
  std::map<std::string, std::string> environment = {};
  // Where it runs; empty: where this process does. A relative path of a program counts from there.
  std::string directory = {};
  // Called for each line, without its end, on a thread of the subprocess's own. None: the output
  // goes where this process's goes.
  OnLine on_stdout = {};
  OnLine on_stderr = {};
  // Nothing to read on standard input. Otherwise it shares this process's.
  bool null_stdin = false;
  // It leads a process group: signals go to its children too, and a terminal's Ctrl-C to none of
  // them. What is left of the group when the leader ends is killed.
  bool own_group = false;
  // Called once, after the last line, on that same thread. It must not destroy the subprocess.
  std::function<void(const ExitStatus&)> on_exit = {};
};

// A child process. It never outlives this one: the kernel kills it when this process ends, however
// that comes. Thread-safe.
class Subprocess {
 public:
  // Fails, naming the program, when it cannot be run.
  static absl::StatusOr<std::unique_ptr<Subprocess>> start(SubprocessOptions options);
  // Kills it if it still runs, and waits for its end.
  ~Subprocess();

  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const;
  // Does nothing once the process has ended: its pid may by then be another's.
  void send_signal(int signal);
  // How it ended; nothing if it still runs at the deadline. By then every line was handed over.
  std::optional<ExitStatus> wait(Time deadline);
  bool is_running() { return !wait(Time::min()); }

 private:
  class Impl;
  explicit Subprocess(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Where a program is that PATH holds, or the path itself if it has a slash; fails, naming it, if it
// cannot be run.
absl::StatusOr<std::string> find_program(const std::string& name);

// A process that ran to its end, and all that it wrote.
struct CompletedProcess {
  ExitStatus status;
  std::string stdout_text;
  std::string stderr_text;
};

// Runs a program and waits for its end; at the deadline it is killed, and that is an error. What it
// writes is captured; callbacks in the options are replaced.
absl::StatusOr<CompletedProcess> run_process(SubprocessOptions options, Time deadline);

}  // namespace trireme
