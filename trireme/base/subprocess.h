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
  int code = 0;    // Exit code; meaningful only if no signal ended the process.
  int signal = 0;  // Signal that ended the process; 0 if it exited.

  bool ok() const { return code == 0 && signal == 0; }
  // Returns the code that a shell would report: the exit code, or 128 plus the signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
  // Returns, for example, "exit code 1" or "killed by SIGKILL".
  std::string to_string() const;

  bool operator==(const ExitStatus&) const = default;
};

struct SubprocessOptions {
  using OnLine = std::function<void(const std::string& line)>;

  // Program and arguments. A program without a slash is looked up in PATH.
  std::vector<std::string> argv;
  // Environment variables that are added to, or replace, the variables of this process.
  std::map<std::string, std::string> environment = {};
  // Working directory of the child; empty for the directory of this process. A relative path in
  // argv[0] is resolved from here.
  std::string directory = {};
  // Callbacks that receive each line without its newline, on a thread that belongs to the
  // subprocess. Without a callback the child shares the output of this process.
  OnLine on_stdout = {};
  OnLine on_stderr = {};
  // True if standard input is /dev/null. Otherwise the child shares the input of this process.
  bool null_stdin = false;
  // True if the child leads its own process group. send_signal() then reaches its children too,
  // and Ctrl-C in a terminal reaches no process of the group. When the leader ends, the rest of
  // the group is killed.
  bool own_group = false;
  // Callback for the end of the process, called once, after the last line and on the same thread.
  // Must not destroy the subprocess.
  std::function<void(const ExitStatus&)> on_exit = {};
};

// A child process. It never outlives this process: the kernel kills it when this process ends, even
// if that is by SIGKILL. Thread-safe.
//
//   auto child = Subprocess::start({.argv = {"sleep", "10"}});
//   if (!child.ok()) return child.status();
//   (*child)->send_signal(SIGTERM);
//   (*child)->wait(after(std::chrono::seconds(1)));
class Subprocess {
 public:
  // Starts the program. Returns an error that names the program if it cannot be run.
  static absl::StatusOr<std::unique_ptr<Subprocess>> start(SubprocessOptions options);
  // Kills the process if it still runs, and waits for its end.
  ~Subprocess();

  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  pid_t pid() const;
  // Sends a signal. Does nothing once the process has ended, because another process may have its
  // pid by then.
  void send_signal(int signal);
  // Waits for the end of the process and returns how it ended, or nullopt if it still runs at the
  // deadline. When this returns a status, all lines and on_exit have been delivered.
  std::optional<ExitStatus> wait(Time deadline);
  bool is_running() { return !wait(Time::min()); }

 private:
  class Impl;
  explicit Subprocess(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Looks a program up in PATH and returns its path. Returns `name` itself if it contains a slash.
// Returns an error that names the program if it is not found or not executable.
absl::StatusOr<std::string> find_program(const std::string& name);

// A process that has ended, with its whole output.
struct CompletedProcess {
  ExitStatus status;
  std::string stdout_text;
  std::string stderr_text;
};

// Runs a program, waits for its end and returns its captured output; on_stdout and on_stderr of the
// options are replaced. If the program still runs at the deadline, it is killed and
// DEADLINE_EXCEEDED is returned.
absl::StatusOr<CompletedProcess> run_process(SubprocessOptions options, Time deadline);

}  // namespace trireme
