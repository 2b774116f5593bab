#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <regex>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/testing/process_cluster.h"

// Functions that run the trireme command as a person does.
namespace trireme {

inline constexpr auto kLimit = std::chrono::seconds(60);

// Returns the path of a program that the build puts beside the tests.
inline std::string built_program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

inline SubprocessOptions trireme_command(std::vector<std::string> arguments,
                                         const std::string& tf_config = "") {
  arguments.insert(arguments.begin(), trireme_binary());
  return {
      .argv = std::move(arguments), .environment = {{"TF_CONFIG", tf_config}}, .null_stdin = true};
}

inline CompletedProcess run_trireme(std::vector<std::string> arguments,
                                    const std::string& tf_config = "") {
  return value_or_throw(
      run_process(trireme_command(std::move(arguments), tf_config), after(kLimit)));
}

// Returns true if a process, which need not be a child, ends before the deadline.
inline bool ends(pid_t pid, Time deadline = after(kLimit)) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return errno == ESRCH;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::real().now());
  pollfd event = {fd, POLLIN, 0};
  const bool ended = poll(&event, 1, std::max<int>(0, static_cast<int>(left.count()))) == 1;
  close(fd);
  return ended;
}

// A command that runs while the test continues, together with its output so far. Thread-safe.
class RunningCommand {
 public:
  explicit RunningCommand(SubprocessOptions options) {
    options.on_stdout = options.on_stderr = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      text_ += line + "\n";
      changed_.notify_all();
    };
    process_ = value_or_throw(Subprocess::start(std::move(options)));
  }

  Subprocess& process() { return *process_; }

  std::string text() {
    std::lock_guard lock(mutex_);
    return text_;
  }

  // Blocks until the output matches `pattern`, then returns the first group, or the whole match if
  // there is no group. Throws Error after kLimit.
  std::string wait_for(const std::string& pattern) {
    const std::regex regex(pattern);
    std::smatch match;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, after(kLimit),
                             [&] { return std::regex_search(text_, match, regex); })) {
      throw Error(ErrorCode::kDeadlineExceeded, "no match for '" + pattern + "' in:\n" + text_);
    }
    return match.size() > 1 ? match[1].str() : match[0].str();
  }

  // Blocks until the command has ended. Throws Error after kLimit.
  ExitStatus wait() {
    const auto status = process_->wait(after(kLimit));
    if (!status) throw Error(ErrorCode::kDeadlineExceeded, "still running; it wrote:\n" + text());
    return *status;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::unique_ptr<Subprocess> process_;
};

}  // namespace trireme
