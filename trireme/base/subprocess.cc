#include "trireme/base/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/executor.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"

// The life of a subprocess.
//
// start() prepares everything that the child needs, has the spawner thread fork, and then reads
// from a pipe that is closed by a successful exec. End of file means that the program runs;
// otherwise the child writes the errno of the failed exec into it, so that start() itself reports
// the error.
//
// A watcher thread per child then polls the child's output pipes and its pidfd. It calls the line
// callbacks, reaps the child, and calls on_exit. Only the watcher reaps, and it does so under
// `mutex_`. send_signal() takes the same lock, so it never signals a pid that the kernel has
// already given to another process. The status is published last: a caller that sees it in wait()
// has had every line. Callbacks run without the lock.

namespace trireme {
namespace {

// A grandchild may keep the pipes open after the process has ended. Its lines are read for this
// long.
constexpr auto kLastLines = std::chrono::milliseconds(500);
// Size of the pieces in which a line without an end is delivered.
constexpr size_t kMaxLine = 64 << 10;

}  // namespace

namespace internal {

// LineReader is a field of Subprocess::Impl, which has external linkage, so it cannot be in the
// anonymous namespace.

// Splits the bytes that arrive on a pipe into lines. Its descriptor is -1 after finish().
class LineReader {
 public:
  LineReader(FileDescriptor fd, SubprocessOptions::OnLine on_line)
      : fd_(std::move(fd)), on_line_(std::move(on_line)) {}

  int fd() const { return fd_.get(); }

  void read_some() {
    char buffer[16 << 10];
    const ssize_t size = read(fd_.get(), buffer, sizeof(buffer));
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (size <= 0) return finish();
    for (ssize_t i = 0; i < size; ++i) {
      if (buffer[i] != '\n') line_ += buffer[i];
      if (buffer[i] == '\n' || line_.size() >= kMaxLine) deliver_line();
    }
  }

  // Delivers an incomplete last line and closes the pipe.
  void finish() {
    if (!line_.empty()) deliver_line();
    fd_.close_now();
  }

 private:
  void deliver_line() { on_line_(std::exchange(line_, {})); }

  FileDescriptor fd_;
  SubprocessOptions::OnLine on_line_;
  std::string line_;
};

}  // namespace internal

using internal::LineReader;

namespace {

struct Pipe {
  FileDescriptor read_end, write_end;

  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end = FileDescriptor(ends[0]);
    write_end = FileDescriptor(ends[1]);
    return true;
  }
};

std::vector<std::string> make_environment(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    if (!changes.contains(variable.substr(0, variable.find('=')))) variables.push_back(variable);
  }
  for (const auto& [name, value] : changes) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

// Returns the null-terminated array of pointers that execve() takes. `texts` must outlive it.
std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything that the child needs, prepared before the fork. After a fork in a process that has
// threads, only async-signal-safe calls are allowed, which excludes allocation.
struct ChildPlan {
  const char* program;
  const char* directory;  // Null for the parent's directory.
  char* const* argv;
  char* const* environment;
  int stdin_fd, stdout_fd, stderr_fd;  // -1 to share the parent's.
  int error_fd;                        // Receives errno if the program cannot be executed.
  bool own_group;
  pid_t parent;
};

// Runs in the child between fork and exec.
[[noreturn]] void run_child(const ChildPlan& plan) {
  // The parent's handlers must not run here, and exec would inherit the signals that the parent
  // ignores or blocks.
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &by_default, nullptr);
  if (plan.own_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.parent) _exit(127);  // The parent ended before the line above.
  if (plan.stdin_fd >= 0) dup2(plan.stdin_fd, STDIN_FILENO);
  if (plan.stdout_fd >= 0) dup2(plan.stdout_fd, STDOUT_FILENO);
  if (plan.stderr_fd >= 0) dup2(plan.stderr_fd, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (plan.directory == nullptr || chdir(plan.directory) == 0) {
    execve(plan.program, plan.argv, plan.environment);
  }
  const int error = errno;
  (void)!write(plan.error_fd, &error, sizeof(error));
  _exit(127);
}

// Forks and returns the child's pid, or the negated errno. All forks come from one thread that
// never ends, because the kernel sends PDEATHSIG when the thread that forked ends, not when its
// process ends. All signals are blocked during the fork, so that no handler of the parent runs in
// the child.
pid_t fork_child(const ChildPlan& plan) {
  static auto* spawner = new ThreadPool("trireme-spawner", 1);
  std::promise<pid_t> forked;
  spawner->submit([&] {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t pid = fork();
    if (pid == 0) run_child(plan);
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    forked.set_value(pid < 0 ? -error : pid);
  });
  return forked.get_future().get();
}

absl::Status cannot_run(const std::string& program, int error) {
  const ErrorCode code = error == ENOENT || error == EACCES || error == ENOEXEC
                             ? ErrorCode::kNotFound
                             : ErrorCode::kResourceExhausted;
  return make_status(code, absl::StrCat("cannot run '", program, "': ", std::strerror(error)));
}

}  // namespace

std::string ExitStatus::to_string() const {
  if (signal == 0) return absl::StrCat("exit code ", code);
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("killed by SIG", name)
                         : absl::StrCat("killed by signal ", signal);
}

class Subprocess::Impl {
 public:
  absl::Status start(SubprocessOptions options) {
    if (options.argv.empty() || options.argv[0].empty()) {
      return make_status(ErrorCode::kInvalidArgument, "argv of the subprocess names no program");
    }
    // The child itself resolves a path that is relative to another directory.
    std::string program = options.argv[0];
    if (options.directory.empty() || program.find('/') == program.npos) {
      TRIREME_ASSIGN_OR_RETURN(program, find_program(program));
    }
    const std::vector<std::string> environment = make_environment(options.environment);
    const std::vector<char*> argv = pointers(options.argv), variables = pointers(environment);
    Pipe out, err, failure;
    FileDescriptor null;
    if ((options.on_stdout && !out.open()) || (options.on_stderr && !err.open()) ||
        !failure.open()) {
      return cannot_run(options.argv[0], errno);
    }
    if (options.null_stdin) null = FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));

    pid_ = fork_child({.program = program.c_str(),
                       .directory = options.directory.empty() ? nullptr : options.directory.c_str(),
                       .argv = argv.data(),
                       .environment = variables.data(),
                       .stdin_fd = null.get(),
                       .stdout_fd = out.write_end.get(),
                       .stderr_fd = err.write_end.get(),
                       .error_fd = failure.write_end.get(),
                       .own_group = options.own_group,
                       .parent = getpid()});
    if (pid_ < 0) return cannot_run(options.argv[0], -pid_);
    // Parent and child both set the group, so that it exists whichever of them runs first.
    if (options.own_group) setpgid(pid_, pid_);
    failure.write_end.close_now();
    int error = 0;
    ssize_t size;
    while ((size = read(failure.read_end.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
    }
    if (size == sizeof(error)) {
      waitpid(pid_, nullptr, 0);
      return cannot_run(options.argv[0], error);
    }
    // glibc 2.36 declares its wrapper without extern "C".
    pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    if (pidfd_.get() < 0) {
      const int reason = errno;
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      return cannot_run(options.argv[0], reason);
    }
    own_group_ = options.own_group;
    on_exit_ = std::move(options.on_exit);
    if (options.on_stdout) add_reader(std::move(out.read_end), std::move(options.on_stdout));
    if (options.on_stderr) add_reader(std::move(err.read_end), std::move(options.on_stderr));
    watcher_ = std::thread([this] { watch(); });
    return absl::OkStatus();
  }

  ~Impl() {
    if (!watcher_.joinable()) return;
    send_signal(SIGKILL);
    watcher_.join();
  }

  pid_t pid() const { return pid_; }

  void send_signal(int signal) {
    MutexLock lock(mutex_);
    if (!reaped_) kill(own_group_ ? -pid_ : pid_, signal);
  }

  std::optional<ExitStatus> wait(Time deadline) {
    MutexLock lock(mutex_);
    while (!status_) {
      if (deadline == Time::max()) {
        ended_.wait(mutex_);
      } else if (!ended_.wait_until(mutex_, deadline)) {
        break;
      }
    }
    return status_;
  }

 private:
  void add_reader(FileDescriptor fd, SubprocessOptions::OnLine on_line) {
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    readers_.emplace_back(std::move(fd), std::move(on_line));
  }

  void watch() {
    set_thread_name("trireme-child");
    std::optional<ExitStatus> status;
    Time last = Time::max();  // Time after which no more lines are read.
    while (!status || std::any_of(readers_.begin(), readers_.end(),
                                  [](const LineReader& reader) { return reader.fd() >= 0; })) {
      int timeout = -1;
      if (status) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(last - Clock::real().now());
        if (left.count() <= 0) break;
        timeout = static_cast<int>(left.count());
      }
      std::vector<pollfd> events = {{status ? -1 : pidfd_.get(), POLLIN, 0}};
      for (const LineReader& reader : readers_) events.push_back({reader.fd(), POLLIN, 0});
      if (poll(events.data(), events.size(), timeout) < 0) continue;
      for (size_t i = 0; i < readers_.size(); ++i) {
        if (events[i + 1].revents != 0) readers_[i].read_some();
      }
      if (events[0].revents != 0) {
        status = reap();
        last = after(kLastLines);
      }
    }
    for (LineReader& reader : readers_) reader.finish();
    if (on_exit_) on_exit_(*status);
    MutexLock lock(mutex_);
    status_ = status;
    ended_.notify_all();
  }

  ExitStatus reap() {
    // Until the child is reaped, no other process can have its pid and no other group its number.
    MutexLock lock(mutex_);
    if (own_group_) kill(-pid_, SIGKILL);
    int raw = 0;
    while (waitpid(pid_, &raw, 0) < 0 && errno == EINTR) {
    }
    reaped_ = true;
    if (WIFSIGNALED(raw)) return {.signal = WTERMSIG(raw)};
    return {.code = WEXITSTATUS(raw)};
  }

  pid_t pid_ = -1;
  FileDescriptor pidfd_;
  bool own_group_ = false;
  std::function<void(const ExitStatus&)> on_exit_;
  std::vector<LineReader> readers_;  // Used by the watcher thread only, once it runs.
  std::thread watcher_;

  Mutex mutex_;
  CondVar ended_;
  bool reaped_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<ExitStatus> status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Subprocess>> Subprocess::start(SubprocessOptions options) {
  auto impl = std::make_unique<Impl>();
  TRIREME_RETURN_IF_ERROR(impl->start(std::move(options)));
  return std::unique_ptr<Subprocess>(new Subprocess(std::move(impl)));
}

Subprocess::Subprocess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Subprocess::~Subprocess() = default;

pid_t Subprocess::pid() const {
  return impl_->pid();
}
void Subprocess::send_signal(int signal) {
  impl_->send_signal(signal);
}
std::optional<ExitStatus> Subprocess::wait(Time deadline) {
  return impl_->wait(deadline);
}

absl::StatusOr<std::string> find_program(const std::string& name) {
  if (name.find('/') != name.npos) {
    if (access(name.c_str(), X_OK) != 0) return cannot_run(name, errno);
    return name;
  }
  const char* path = std::getenv("PATH");
  const std::string folders = path != nullptr ? path : "/usr/bin:/bin";
  for (const std::string& folder : std::vector<std::string>(absl::StrSplit(folders, ':'))) {
    const std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return cannot_run(name, ENOENT);
}

absl::StatusOr<CompletedProcess> run_process(SubprocessOptions options, Time deadline) {
  const std::string program = options.argv.empty() ? "" : options.argv[0];
  CompletedProcess completed;
  options.on_stdout = [&](const std::string& line) {
    absl::StrAppend(&completed.stdout_text, line, "\n");
  };
  options.on_stderr = [&](const std::string& line) {
    absl::StrAppend(&completed.stderr_text, line, "\n");
  };
  TRIREME_ASSIGN_OR_RETURN(const std::unique_ptr<Subprocess> process,
                           Subprocess::start(std::move(options)));
  const std::optional<ExitStatus> status = process->wait(deadline);
  if (!status) {
    process->send_signal(SIGKILL);
    process->wait(Time::max());
    return make_status(
        ErrorCode::kDeadlineExceeded,
        absl::StrCat("'", program, "' (pid ", process->pid(),
                     ") was still running at its deadline and was killed; it wrote: ",
                     completed.stdout_text, completed.stderr_text));
  }
  completed.status = *status;
  return completed;
}

}  // namespace trireme
