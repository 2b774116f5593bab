#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "trireme/base/status.h"
#include "trireme/ps/job_list.h"

namespace trireme {
namespace {

constexpr char kJobsFooter[] = R"(
Examples:
  trireme jobs ls --cluster cluster.json      the jobs whose variables the servers hold
  trireme jobs drop ads --cluster cluster.json
  trireme jobs ls --json | jq '.jobs[] | select(.programs == 0)'

A job is the work of the client programs that name it (`.job` in their options). Its variables are freed
when its last program ends, or some minutes after the last program was heard from. `drop` frees them at
once; programs of the job that still run fail. Without --cluster the cluster is read from TF_CONFIG, or
from torchrun's or Slurm's variables. The exit code is 0 if every worker and ps task answers, otherwise 1.)";

struct JobsFlags {
  std::string cluster, certs, job;
  double timeout = 5;
  bool json = false;
};

// A worker or ps task of the cluster, with a channel to it.
struct JobServer {
  std::string task;
  std::unique_ptr<Channel> channel;
};

std::vector<JobServer> job_servers(const JobsFlags& options) {
  const ClusterSpec spec = resolve_cluster("", "", options.cluster).spec;
  if (spec.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no cluster was given to ask: give --cluster FILE, or set TF_CONFIG");
  }
  spec.check_ports();
  const Credentials credentials = client_credentials(options.certs);
  std::vector<JobServer> servers;
  for (const TaskId& task : spec.all_tasks()) {
    if (task.job != "worker" && task.job != "ps") continue;
    servers.push_back(
        {task.to_string(), std::make_unique<Channel>(ChannelOptions{.address = spec.address(task),
                                                                    .task = task.to_string(),
                                                                    .credentials = credentials})});
  }
  return servers;
}

// Asks all servers in parallel. Returns their answers, in their order.
template <typename Answer, typename Ask>
std::vector<absl::StatusOr<Answer>> ask_each(const std::vector<JobServer>& servers, Ask ask) {
  std::vector<std::future<absl::StatusOr<Answer>>> asked;
  for (const JobServer& server : servers) {
    asked.push_back(
        std::async(std::launch::async, [&server, ask] { return ask(*server.channel); }));
  }
  std::vector<absl::StatusOr<Answer>> answers;
  for (auto& answer : asked) answers.push_back(answer.get());
  return answers;
}

// Names the servers that did not answer. Returns the exit code.
template <typename Answer>
int report_silent(const std::vector<JobServer>& servers,
                  const std::vector<absl::StatusOr<Answer>>& answers) {
  int code = 0;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (answers[i].ok()) continue;
    say(text_of(to_error(with_origin(answers[i].status(), {servers[i].task, ""}))));
    code = kRunTimeError;
  }
  return code;
}

// A job on all servers together.
struct JobSummary {
  uint64_t generation = 0, programs = 0, variables = 0, bytes = 0;
  std::optional<std::chrono::milliseconds> freed_in;  // nullopt while a program runs
  std::vector<std::string> tasks;
};

std::map<std::string, JobSummary> summarize(
    const std::vector<JobServer>& servers,
    const std::vector<absl::StatusOr<std::vector<ListedJob>>>& answers) {
  std::map<std::string, JobSummary> jobs;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (!answers[i].ok()) continue;
    for (const ListedJob& listed : *answers[i]) {
      JobSummary& job = jobs[listed.job];
      job.generation = std::max(job.generation, listed.generation);
      job.programs = std::max<uint64_t>(job.programs, listed.members);
      job.variables += listed.variables;
      job.bytes += listed.bytes;
      if (listed.freed_in) {
        job.freed_in = std::max(job.freed_in.value_or(*listed.freed_in), *listed.freed_in);
      }
      job.tasks.push_back(servers[i].task);
    }
  }
  for (auto& [id, job] : jobs) {
    if (job.programs > 0) job.freed_in.reset();
  }
  return jobs;
}

// `silent` is the number of tasks that have not answered.
void print_jobs(const std::map<std::string, JobSummary>& jobs, size_t tasks, size_t silent) {
  if (jobs.empty()) {
    if (silent < tasks) {
      absl::PrintF("no task %sholds a job\n", silent > 0 ? "that answers " : "");
    }
    return;
  }
  size_t width = 3;
  for (const auto& [id, job] : jobs) width = std::max(width, id.size());
  absl::PrintF("%-*s  %10s  %8s  %5s  %9s  %10s  %s\n", width, "JOB", "GENERATION", "PROGRAMS",
               "TASKS", "VARIABLES", "BYTES", "FREED IN");
  for (const auto& [id, job] : jobs) {
    absl::PrintF("%-*s  %10d  %8d  %5d  %9d  %10s  %s\n", width, id, job.generation, job.programs,
                 job.tasks.size(), job.variables, format_bytes(job.bytes),
                 job.freed_in ? format_duration(*job.freed_in) : "-");
  }
}

void print_jobs_json(const std::map<std::string, JobSummary>& jobs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [id, job] : jobs) {
    nlohmann::ordered_json entry = {
        {"job", id},          {"generation", job.generation}, {"programs", job.programs},
        {"tasks", job.tasks}, {"variables", job.variables},   {"bytes", job.bytes}};
    entry["freed_in_seconds"] =
        job.freed_in ? nlohmann::ordered_json(std::chrono::duration<double>(*job.freed_in).count())
                     : nlohmann::ordered_json(nullptr);
    list.push_back(std::move(entry));
  }
  std::printf("%s\n", nlohmann::ordered_json{{"jobs", list}}.dump(2).c_str());
}

int show_jobs(const JobsFlags& options) {
  const Time deadline = after(seconds_of("--timeout", options.timeout));
  const std::vector<JobServer> servers = job_servers(options);
  const auto answers = ask_each<std::vector<ListedJob>>(
      servers, [deadline](Channel& channel) { return list_jobs(channel, deadline); });
  const auto jobs = summarize(servers, answers);
  const auto silent =
      std::ranges::count_if(answers, [](const auto& answer) { return !answer.ok(); });
  options.json ? print_jobs_json(jobs) : print_jobs(jobs, servers.size(), silent);
  return report_silent(servers, answers);
}

int drop(const JobsFlags& options) {
  const Time deadline = after(seconds_of("--timeout", options.timeout));
  const std::vector<JobServer> servers = job_servers(options);
  const auto answers = ask_each<bool>(servers, [deadline, &options](Channel& channel) {
    return drop_job(channel, options.job, deadline);
  });
  std::vector<std::string> dropped;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (answers[i].ok() && *answers[i]) dropped.push_back(servers[i].task);
  }
  const int code = report_silent(servers, answers);
  if (dropped.empty()) {
    say(absl::StrCat("no task that answers has job '", options.job,
                     "'; `trireme jobs ls` lists the jobs"));
    return kRunTimeError;
  }
  absl::PrintF("dropped job '%s' on %s\n", options.job, absl::StrJoin(dropped, ", "));
  return code;
}

void add_common_options(CLI::App* command, JobsFlags& options) {
  command->add_option("--cluster", options.cluster, "The cluster as a JSON file")
      ->type_name("FILE");
  command->add_option("--certs", options.certs, "A folder with a client's certificates")
      ->type_name("DIR");
  command->add_option("--timeout", options.timeout, "Seconds until a silent task counts as down")
      ->capture_default_str();
  command->footer(kJobsFooter);
}

}  // namespace

void add_jobs_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("jobs", "List and drop the jobs on the servers");
  command->require_subcommand(1);
  command->footer(kJobsFooter);
  auto options = std::make_shared<JobsFlags>();
  CLI::App* list = command->add_subcommand("ls", "List the jobs whose variables the servers hold");
  add_common_options(list, *options);
  list->add_flag("--json", options->json, "Print JSON for programs");
  list->callback(
      [&invocation, options] { invocation.run = [options] { return show_jobs(*options); }; });
  CLI::App* remove = command->add_subcommand("drop", "Free the variables of a job");
  remove->add_option("JOB", options->job, "The id of the job")->required();
  add_common_options(remove, *options);
  remove->callback(
      [&invocation, options] { invocation.run = [options] { return drop(*options); }; });
}

}  // namespace trireme
