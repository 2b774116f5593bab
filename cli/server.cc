#include "trireme/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/machine.h"
#include "trireme/base/version.h"
#include "trireme/tensor/buffer_pool.h"

namespace trireme {
namespace {

constexpr char kServerFooter[] = R"(
Examples:
  trireme server --job worker --task 0 --cluster cluster.json
  trireme server --job ps --task 1 --cluster cluster.json --devices cpu:2 --threads 4
  TF_CONFIG='{"cluster": {...}, "task": {"type": "worker", "index": 1}}' trireme server

The cluster file lists every task: {"worker": ["a:2222", "b:2222"], "ps": ["a:2221"]}. The server
listens on the address that its task has in the file. Servers may be started in any order. A server
serves one job after another; with --exit-with-job it ends with the first. On SIGTERM or Ctrl-C it
lets the calls in flight finish for up to ten seconds, then exits with code 0.

With --certs all connections use TLS with certificates on both sides; `trireme certs init` creates
them. Without certificates a server listens on loopback addresses only. --insecure lifts this limit:
every machine that can reach the port then controls the server.)";

struct ServerFlags {
  std::string job, task, cluster, devices, checkpoint_root, data_root, certs, bind,
      log_level = "info";
  int threads = 0;
  uint64_t memory_limit = 0;
  bool exit_with_job = false, insecure = false;
};

// Returns the tasks of a cluster for a message: "ps 0; worker 0,1".
std::string tasks_of(const ClusterSpec& spec) {
  std::vector<std::string> jobs;
  for (const std::string& job : spec.jobs()) {
    jobs.push_back(absl::StrCat(
        job, " ", absl::StrJoin(spec.tasks(job), ",", [](std::string* out, const TaskId& task) {
          absl::StrAppend(out, task.index);
        })));
  }
  return absl::StrJoin(jobs, "; ");
}

Cluster own_cluster(const ServerFlags& options) {
  Cluster cluster = resolve_cluster(options.job, options.task, options.cluster);
  if (cluster.is_local()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "no cluster was given to serve in: give --cluster FILE with --job and --task, or set "
        "TF_CONFIG");
  }
  if (!cluster.task) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("no task was given to serve: give --job and --task; the cluster has ",
                             tasks_of(cluster.spec)));
  }
  return cluster;
}

// Returns the bytes of freed blocks that the pool keeps for the next operators: a sixteenth of the
// memory, within bounds.
size_t pool_capacity() {
  return std::clamp<uint64_t>(physical_memory() / 16, BufferPool::kDefaultCapacity,
                              uint64_t{4} << 30);
}

int serve(const ServerFlags& options) {
  set_log_level(parse_log_level(options.log_level));
  if (options.threads < 0) {
    throw Error(ErrorCode::kInvalidArgument, absl::StrCat("--threads=", options.threads,
                                                          " is not a valid number of threads; give "
                                                          "0 to leave it to LibTorch"));
  }
  ServerOptions server_options{.threads = options.threads,
                               .memory_limit = options.memory_limit,
                               .checkpoint_root = options.checkpoint_root,
                               .data_root = options.data_root,
                               .certs = options.certs,
                               .insecure = options.insecure,
                               .bind_host = options.bind,
                               .exit_with_job = options.exit_with_job};
  if (!options.devices.empty()) server_options.devices = DeviceList::parse(options.devices);
  const Cluster cluster = own_cluster(options);
  configure_memory_for_server(pool_capacity());
  Server server(cluster, server_options);
  const int code = server.join();
  log_info(server.task().to_string(), " has stopped");
  return code;
}

}  // namespace

void add_server_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("server", "Serve one task of a cluster, until stopped");
  auto options = std::make_shared<ServerFlags>();
  command->add_option("--job", options->job, "The role: worker, ps, chief or evaluator");
  command->add_option("--task", options->task, "The index of the task within its role");
  command
      ->add_option(
          "--cluster", options->cluster,
          "The cluster as a JSON file; default: TF_CONFIG, torchrun's or Slurm's variables")
      ->type_name("FILE");
  command->add_option("--devices", options->devices,
                      "Logical devices, for example cpu:2 or cpu:2,gpu:1; default: the CPU and all "
                      "accelerators of the machine");
  command->add_option("--threads", options->threads,
                      "Threads that one operator may use; 0 leaves it to LibTorch");
  command
      ->add_option(
          "--memory-limit", options->memory_limit,
          "Memory that variables may take, for example 8GiB; default: four fifths of the machine's")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->type_name("SIZE");
  command
      ->add_option("--checkpoint-root", options->checkpoint_root,
                   "Folder inside which programs may let the server write and read checkpoints; "
                   "default: the working directory")
      ->type_name("DIR");
  command
      ->add_option("--data-root", options->data_root,
                   "Folder inside which programs may let the server read the files of datasets; "
                   "default: it reads none")
      ->type_name("DIR");
  command->add_flag("--exit-with-job", options->exit_with_job, "End when the chief ends the job");
  command
      ->add_option("--bind", options->bind,
                   "Listen on this host instead of the task's host in the cluster")
      ->type_name("HOST");
  command
      ->add_option("--certs", options->certs,
                   "A folder with the certificates of the task, or of all tasks")
      ->type_name("DIR");
  command->add_flag("--insecure", options->insecure,
                    "Allow an address that other machines can reach, without certificates");
  command->add_option("--log-level", options->log_level, "debug, info, warning, error or off")
      ->capture_default_str();
  command->footer(kServerFooter);
  command->callback(
      [&invocation, options] { invocation.run = [options] { return serve(*options); }; });
}

}  // namespace trireme
