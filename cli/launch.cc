#include <signal.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "cli/launched_cluster.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/signals.h"
#include "trireme/base/status.h"
#include "trireme/base/subprocess.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/rpc/certificates.h"

namespace trireme {
namespace {

constexpr char kLaunchFooter[] = R"(
Examples:
  trireme launch --workers 3 --ps 2 -- ./train --epochs 5
  trireme launch --workers 2 --same-binary -- ./train
  trireme launch --workers 3 --ps 2 -- trireme status

Starts a `trireme server` for each task on a free port of this machine, waits until all of them
answer, and runs the program as the chief: it finds the cluster in TF_CONFIG, as on a real one. With
--same-binary the program itself runs in every role, and serves where tr::resolve() says so.

Lines of the servers begin with their task, as [worker/0]; the program's own output is left as it is.
When the program ends, or on Ctrl-C or SIGTERM, everything is stopped. The exit code is the
program's; 128 and the signal's number if a signal ended it. If a server ends early, a warning says
so and the rest goes on.)";

// How long a program that was asked to end may take, before it is asked more firmly.
constexpr auto kPatience = std::chrono::seconds(10);
constexpr int kMostTasks = 1000;

struct LaunchFlags {
  int workers = 1, ps = 0;
  std::string devices, certs, log_level = "info";
  double timeout = 60;
  bool same_binary = false;
};

void check(const LaunchFlags& options, const std::vector<std::string>& program) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument, text);
  };
  for (const auto& [flag, count] :
       {std::pair("--workers", options.workers), {"--ps", options.ps}}) {
    if (count < 0 || count > kMostTasks) {
      refuse(absl::StrCat(flag, "=", count, " is no number of tasks from 0 to ", kMostTasks));
    }
  }
  if (options.workers + options.ps == 0) {
    refuse("--workers=0 --ps=0 makes no cluster; give at least one task");
  }
  if (program.empty()) {
    refuse(
        "there is no program to run; write it after two dashes: trireme launch --workers 3 --ps "
        "2 -- ./program");
  }
  if (!options.devices.empty()) {
    DeviceList::parse(options.devices);
    if (options.same_binary) {
      refuse(
          "--devices is for `trireme server`s; with --same-binary the program's own "
          "ServerOptions say which devices it has");
    }
  }
  parse_log_level(options.log_level);
  value_or_throw(find_program(program[0]));
}

std::vector<std::string> server_command(const LaunchFlags& options,
                                        const std::vector<std::string>& program) {
  if (options.same_binary) return program;
  std::vector<std::string> command = {"/proc/self/exe", "server", "--log-level", options.log_level};
  char path[4096];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size > 0) command[0].assign(path, size);
  if (!options.devices.empty()) command.insert(command.end(), {"--devices", options.devices});
  if (!options.certs.empty()) command.insert(command.end(), {"--certs", options.certs});
  return command;
}

// Whether a Ctrl-C of the terminal reaches our children by itself.
bool in_foreground() {
  return isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

// Runs the chief's program, and passes on to it a signal that asks us to end.
ExitStatus run_program(const std::vector<std::string>& program, const std::string& tf_config,
                       const StopOnSignal& signals) {
  Mutex mutex;
  CondVar changed;
  bool over = false;
  const auto wake = [&] {
    MutexLock lock(mutex);
    over = true;
    changed.notify_all();
  };
  // In a terminal it stays in the foreground, where it can be typed to. Elsewhere it leads a group,
  // so that what it started itself ends with it.
  const bool foreground = in_foreground();
  auto process = value_or_throw(Subprocess::start({.argv = program,
                                                   .environment = {{"TF_CONFIG", tf_config}},
                                                   .own_group = !foreground,
                                                   .on_exit = [&](const ExitStatus&) { wake(); }}));
  {
    std::stop_callback on_signal(signals.token(), wake);
    MutexLock lock(mutex);
    while (!over) changed.wait(mutex);
  }
  if (signals.token().stop_requested()) {
    if (!foreground || signals.signal() != SIGINT) process->send_signal(signals.signal());
    for (const int signal : {SIGTERM, SIGKILL}) {
      if (process->wait(after(kPatience))) break;
      say(absl::StrCat("the program (pid ", process->pid(), ") goes on; sending SIG",
                       sigabbrev_np(signal)));
      process->send_signal(signal);
    }
  }
  return *process->wait(Time::max());
}

int launch(const LaunchFlags& options, const std::vector<std::string>& program) {
  const Duration limit = seconds_of("--timeout", options.timeout);
  check(options, program);
  StopOnSignal signals;
  LaunchedCluster cluster(options.workers, options.ps);
  if (!options.certs.empty()) {
    throw_if_error(write_certificates(options.certs, cluster.spec()).status());
  }
  cluster.start(server_command(options, program));
  if (!cluster.wait_until_up(limit, client_credentials(options.certs), signals.token()))
    return 128 + signals.signal();
  const ExitStatus status = run_program(program, cluster.tf_config({"chief", 0}), signals);
  cluster.stop();
  if (status.signal != 0) say(absl::StrCat("the program was ", status.to_string()));
  return status.shell_code();
}

}  // namespace

void add_launch_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("launch", "Run a program with a whole cluster on this machine");
  auto options = std::make_shared<LaunchFlags>();
  command->add_option("--workers", options->workers, "How many workers")->capture_default_str();
  command->add_option("--ps", options->ps, "How many parameter servers")->capture_default_str();
  command->add_option("--devices", options->devices,
                      "Logical devices of each server, as cpu:2 or cpu:2,gpu:1");
  command
      ->add_option("--certs", options->certs,
                   "Write certificates for the cluster into this folder, and use them")
      ->type_name("DIR");
  command->add_flag("--same-binary", options->same_binary,
                    "Run the program in every role instead of `trireme server`");
  command->add_option("--timeout", options->timeout, "Seconds that the servers may take to start")
      ->capture_default_str();
  command
      ->add_option("--log-level", options->log_level,
                   "Of the servers: debug, info, warning, error or off")
      ->capture_default_str();
  command->footer(kLaunchFooter);
  command->callback([&invocation, options] {
    invocation.run = [options, program = invocation.program] { return launch(*options, program); };
  });
}

}  // namespace trireme
