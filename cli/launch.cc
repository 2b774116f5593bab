#include <signal.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/launched_cluster.h"
#include "cli/restart_policy.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/signals.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/rpc/certificates.h"

// `trireme launch` runs a program with a cluster of its own, in this order:
//
// 1. Start the servers as child processes on reserved ports, and wait until all of them answer.
// 2. Run the program as the chief, and wait until it ends or a signal asks the launcher to end.
// With
//    --restart, start it again unless it exits with code 0; the servers are started again as well.
// 3. On a signal, pass it on to the program. If it does not end in the grace time, send a stronger
//    one. SIGTERM is sent only once, since a program that saves on the first ends on the second.
// 4. Stop the servers, which the program needs to save, and exit with the program's exit code.
//
// The servers have process groups of their own, so Ctrl-C in a terminal reaches the program, which
// may still use them, but not the servers.

namespace trireme {
namespace {

constexpr char kLaunchFooter[] = R"(
Examples:
  trireme launch --workers 3 --ps 2 -- ./train --epochs 5
  trireme launch --workers 2 --ps 1 --same-binary -- ./train
  trireme launch --workers 4 --mirrored -- ./train
  trireme launch --workers 3 --ps 2 --restart --grace 60 -- ./train
  trireme launch --workers 3 --ps 2 -- trireme status

Starts a `trireme server` for each task on a free port of this machine, waits until all of them
answer, and runs the program as the chief. The program finds the cluster in TF_CONFIG, as on a real
cluster. With --same-binary the program itself runs in every role; tr::resolve() tells it when to
serve. With --mirrored the program runs as each worker, for tr::MultiWorkerMirroredStrategy; there is
no server and no chief, and what follows about the program is about worker 0. The other workers get
SIGTERM when worker 0 has ended after a signal, and otherwise --grace seconds after it has ended.

Each task gets its share of the cores as OMP_NUM_THREADS, unless that variable is set.

Each line of a server's output is prefixed with its task, for example [worker/0]. The program's own
output is not changed. When the program ends, or on Ctrl-C or SIGTERM, everything is stopped. The exit
code is the program's, or 128 plus the signal if a signal ended it. If a server ends early, a warning
is printed and the other tasks continue.

With --restart, servers that end are started again, and so is the program, until it exits with code 0.
A program with tr::BackupAndRestore or tr::CheckpointManager then continues from its newest checkpoint.
The delay before a restart begins with --restart-delay, doubles up to 30 times that, and begins anew
after a minute of life. A program that fails 10 times without such a minute ends the launch.

SIGTERM is passed on to the program, which has --grace seconds to save and exit, with code 143.)";

constexpr int kMostTasks = 1000;
constexpr auto kLongestWait = std::chrono::minutes(1);

struct LaunchFlags {
  int workers = 1, ps = 0;
  std::string devices, checkpoint_root, data_root, certs, log_level = "info";
  double timeout = 60, grace = 10, restart_delay = 1;
  bool same_binary = false, mirrored = false, restart = false;
};

void check(const LaunchFlags& options, const std::vector<std::string>& program) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  for (const auto& [flag, count] :
       {std::pair("--workers", options.workers), {"--ps", options.ps}}) {
    if (count < 0 || count > kMostTasks) {
      refuse(absl::StrCat(flag, "=", count, " is not a valid number of tasks; give 0 to ",
                          kMostTasks));
    }
  }
  if (options.mirrored && (options.ps > 0 || options.workers == 0 || !options.devices.empty())) {
    refuse(
        "--mirrored needs workers, and cannot be used with --ps or --devices: the program runs as "
        "each worker, and chooses its devices in MultiWorkerMirroredStrategyOptions");
  }
  if (options.mirrored && options.same_binary) {
    refuse(
        "--mirrored cannot be used with --same-binary: it already runs the program as each worker, "
        "and there are no servers");
  }
  if (options.workers + options.ps == 0) {
    refuse("--workers=0 --ps=0 is not a valid cluster; give at least one task");
  }
  if (program.empty()) {
    refuse(
        "no program was given to run; give it after two dashes: trireme launch --workers 3 --ps "
        "2 -- ./program");
  }
  if (!options.devices.empty()) {
    DeviceList::parse(options.devices);
    if (options.same_binary) {
      refuse(
          "--devices cannot be used with --same-binary: it sets the devices of `trireme server`; "
          "set them in the program's own ServerOptions");
    }
  }
  parse_log_level(options.log_level);
  value_or_throw(find_program(program[0]));
}

// Returns the command that runs as a task.
std::vector<std::string> command_of(const TaskId& task, const LaunchFlags& options,
                                    const std::vector<std::string>& program) {
  if (options.same_binary || options.mirrored) return program;
  // The task is in TF_CONFIG, too. Here it is for those who list the processes.
  std::vector<std::string> command = {
      "/proc/self/exe",           "server",      "--job",          task.job, "--task",
      std::to_string(task.index), "--log-level", options.log_level};
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size > 0) command[0].assign(path, size);
  if (!options.devices.empty()) command.insert(command.end(), {"--devices", options.devices});
  if (!options.checkpoint_root.empty()) {
    command.insert(command.end(), {"--checkpoint-root", options.checkpoint_root});
  }
  if (!options.data_root.empty()) command.insert(command.end(), {"--data-root", options.data_root});
  if (!options.certs.empty()) command.insert(command.end(), {"--certs", options.certs});
  return command;
}

// Names the program in the usage line.
class LaunchFormatter final : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = Formatter::make_usage(app, std::move(name));
    return usage.insert(usage.find_last_not_of('\n') + 1, " -- PROGRAM [ARGUMENT...]");
  }
};

// Returns true if the terminal sends Ctrl-C to our child processes itself.
bool in_foreground() {
  return isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

// An event that happens once, such as the end of a process or a signal. Thread-safe.
class Event {
 public:
  void set() {
    MutexLock lock(mutex_);
    happened_ = true;
    changed_.notify_all();
  }
  // Blocks until it happens or the deadline has passed. Returns true if it has happened.
  bool wait(Time deadline) {
    MutexLock lock(mutex_);
    while (!happened_ && changed_.wait_until(mutex_, deadline)) {
    }
    return happened_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool happened_ ABSL_GUARDED_BY(mutex_) = false;
};

// Runs the chief's program until it ends. Passes on to it a signal that asks the launcher to end.
ExitStatus run_program(const std::vector<std::string>& program,
                       const std::map<std::string, std::string>& environment, Duration grace,
                       const StopOnSignal& signals) {
  Event over;
  // In a terminal the program stays in the foreground, so that it can read from the terminal.
  // Elsewhere it leads a process group, so that the processes it started end with it.
  const bool foreground = in_foreground();
  auto process =
      value_or_throw(Subprocess::start({.argv = program,
                                        .environment = environment,
                                        .own_group = !foreground,
                                        .on_exit = [&](const ExitStatus&) { over.set(); }}));
  {
    std::stop_callback on_signal(signals.token(), [&] { over.set(); });
    while (!over.wait(after(kLongestWait))) {
    }
  }
  if (signals.token().stop_requested()) {
    const int asked = signals.signal();  // a later one does not count
    if (!foreground || asked != SIGINT) process->send_signal(asked);
    for (const int signal : {SIGTERM, SIGKILL}) {
      if (signal == asked) continue;
      if (process->wait(after(grace))) break;
      say(absl::StrCat("the program (pid ", process->pid(), ") has not ended; sending SIG",
                       sigabbrev_np(signal)));
      process->send_signal(signal);
    }
  }
  return *process->wait(Time::max());
}

// Runs the program, and again as the options say, until it ends for good. Returns the exit code of
// the launch.
int run_until_done(const LaunchFlags& options, const std::vector<std::string>& program,
                   const std::map<std::string, std::string>& environment,
                   const StopOnSignal& signals) {
  const Duration grace = seconds_of("--grace", options.grace);
  RestartPolicy policy(seconds_of("--restart-delay", options.restart_delay));
  for (;;) {
    const Time begin = Clock::real().now();
    const ExitStatus status = run_program(program, environment, grace, signals);
    if (!options.restart || status.ok() || signals.token().stop_requested()) {
      if (status.signal != 0) say(absl::StrCat("the program was ", status.to_string()));
      return status.shell_code();
    }
    const auto delay = policy.next_delay(status, Clock::real().now() - begin);
    if (!delay) {
      say(absl::StrCat("the program '", program[0], "' has failed ", RestartPolicy::kMostFailures,
                       " times in a short time, and is not started again: ", status.to_string()));
      return status.shell_code();
    }
    say(absl::StrCat("warning: the program has ended: ", status.to_string(),
                     "; it is started again in ", format_duration(*delay)));
    Event stop;
    const std::stop_callback on_signal(signals.token(), [&] { stop.set(); });
    if (stop.wait(after(*delay))) return 128 + signals.signal();
  }
}

int launch(const LaunchFlags& options, const std::vector<std::string>& program) {
  const Duration limit = seconds_of("--timeout", options.timeout);
  seconds_of("--grace", options.grace);
  seconds_of("--restart-delay", options.restart_delay);
  check(options, program);
  StopOnSignal signals;
  LaunchedCluster cluster(options.workers, options.ps);
  if (!options.certs.empty()) {
    throw_if_error(write_certificates(options.certs, cluster.spec()).status());
  }
  const TaskId self = options.mirrored ? TaskId{"worker", 0} : TaskId{"chief", 0};
  if (options.mirrored) cluster.expect_programs();
  cluster.start([&](const TaskId& task) { return command_of(task, options, program); }, self);
  if (!options.mirrored &&
      !cluster.wait_until_up(limit, client_credentials(options.certs), signals.token())) {
    return 128 + signals.signal();
  }
  if (options.restart)
    cluster.restart_servers(seconds_of("--restart-delay", options.restart_delay));
  const int code = run_until_done(options, program, cluster.environment(self), signals);
  // Without a signal the other workers end by themselves.
  if (options.mirrored) {
    cluster.wait_for_end(after(seconds_of("--grace", options.grace)), signals.token());
  }
  cluster.stop();
  return code;
}

}  // namespace

void add_launch_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("launch", "Run a program with a whole cluster on this machine");
  auto options = std::make_shared<LaunchFlags>();
  command->add_option("--workers", options->workers, "Number of workers")->capture_default_str();
  command->add_option("--ps", options->ps, "Number of parameter servers")->capture_default_str();
  command->add_option("--devices", options->devices,
                      "Logical devices of each server, for example cpu:2 or cpu:2,gpu:1");
  command
      ->add_option("--checkpoint-root", options->checkpoint_root,
                   "Folder inside which the servers may write and read checkpoints; default: the "
                   "working directory")
      ->type_name("DIR");
  command
      ->add_option("--data-root", options->data_root,
                   "Folder inside which the servers may read the files of datasets; default: they "
                   "read none")
      ->type_name("DIR");
  command
      ->add_option("--certs", options->certs,
                   "Write certificates for the cluster into this folder, and use them")
      ->type_name("DIR");
  command->add_flag("--same-binary", options->same_binary,
                    "Run the program in every role instead of `trireme server`");
  command->add_flag("--mirrored", options->mirrored,
                    "Run the program as each worker, without servers and a chief");
  command->add_flag("--restart", options->restart,
                    "Start servers that end, and a program that fails or is killed, again");
  command
      ->add_option("--restart-delay", options->restart_delay,
                   "Seconds before the first restart of a task; doubles from one to the next")
      ->capture_default_str();
  command
      ->add_option("--grace", options->grace,
                   "Seconds that the program has to end after a signal, before it is killed")
      ->capture_default_str();
  command->add_option("--timeout", options->timeout, "Seconds that the servers may take to start")
      ->capture_default_str();
  command
      ->add_option("--log-level", options->log_level,
                   "Log level of the servers: debug, info, warning, error or off")
      ->capture_default_str();
  command->formatter(std::make_shared<LaunchFormatter>());
  command->footer(kLaunchFooter);
  command->callback([&invocation, options] {
    invocation.run = [options, program = invocation.program] { return launch(*options, program); };
  });
}

}  // namespace trireme
