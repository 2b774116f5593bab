#include <algorithm>
#include <cstdio>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/variables.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/signals.h"
#include "trireme/base/status.h"
#include "trireme/cluster/address.h"
#include "trireme/runtime/cluster_status.h"

namespace trireme {
namespace {

constexpr char kStatusFooter[] = R"(
Examples:
  trireme status --cluster cluster.json              every task of the cluster
  trireme status --cluster cluster.json --wait 60    first wait, up to a minute, until all are up
  trireme status --target 127.0.0.1:2222             the one server at an address
  trireme launch --workers 3 --ps 2 -- trireme status
  trireme status --variables                         which variables each task holds
  trireme status --input                             whether training waits for its input
  trireme status --json | jq '.tasks[] | select(.serves and (.up | not))'

Without --cluster and --target the cluster is read from TF_CONFIG, or from torchrun's or Slurm's
variables. All tasks are asked in parallel. The exit code is 0 if every task answers, otherwise 1. The
chief of a cluster with ps tasks need not answer: its program only uses the servers.)";

struct StatusFlags {
  std::string cluster, target, certs;
  double timeout = 5;
  std::optional<double> wait;
  bool json = false;
  bool variables = false, input = false;
  double interval = 1;
};

// One line of the table: a task and its answer.
struct Row {
  std::string task, address, role;
  absl::StatusOr<TaskDescription> answer;
  bool serves = true;  // False if no process needs to serve at the address: ClusterSpec::serves().

  bool missing() const { return serves && !answer.ok(); }
};

std::string role_of(const std::string& task) {
  const auto parsed = try_call([&] { return TaskId::parse(task).job; });
  return parsed.ok() ? *parsed : "";
}

std::vector<Row> ask_target(const StatusFlags& options, Time deadline) {
  std::string address = options.target;
  if (address.rfind("grpc://", 0) == 0) address = address.substr(7);
  try {
    address = internal::Address::parse(address).to_string();
  } catch (const Error& error) {
    throw Error(error.code(), absl::StrCat("--target: ", error.message()));
  }
  // describe_task() is asynchronous, unlike hello(), so it ends at the deadline even if the server
  // misbehaves.
  Channel channel({.address = address, .credentials = client_credentials(options.certs)});
  auto answer = std::make_shared<std::promise<absl::StatusOr<TaskDescription>>>();
  describe_task(channel,
                CallOptions{.deadline = deadline, .wait_for_ready = options.wait.has_value()},
                [answer](auto result) { answer->set_value(std::move(result)); });
  Row row{.address = address, .answer = answer->get_future().get()};
  if (row.answer.ok()) {
    row.task = row.answer->task;
    row.role = role_of(row.task);
  }
  return {row};
}

std::vector<Row> ask_cluster(const ClusterSpec& spec, const StatusFlags& options, Time deadline) {
  StopOnSignal signals;
  const ClusterStatus status =
      describe_cluster(spec, {.deadline = deadline,
                              .wait = options.wait.has_value(),
                              .on_waiting =
                                  [&](const std::vector<TaskId>& missing) {
                                    if (options.wait)
                                      say("waiting for " + list_tasks(spec, missing));
                                  },
                              .stop = signals.token(),
                              .credentials = client_credentials(options.certs)});
  std::vector<Row> rows;
  for (const auto& [task, answer] : status) {
    rows.push_back(
        {task.to_string(), spec.address(task), task.job, answer, spec.serves(task) || answer.ok()});
  }
  return rows;
}

// Returns the reason for a missing answer, short enough for a table; --json has the whole text.
std::string short_reason(const Row& row, Duration limit) {
  const absl::Status& status = row.answer.status();
  std::string message(status.message());
  const ErrorCode code = error_code(status);
  if (!row.serves &&
      (code == ErrorCode::kTaskUnreachable || code == ErrorCode::kDeadlineExceeded)) {
    return "runs no server, and needs none";
  }
  switch (code) {
    case ErrorCode::kTaskUnreachable: {
      // The transport's reason is in parentheses, from the general to the specific part. Keep the
      // last part.
      const size_t open = message.find('('), close = message.rfind(')');
      if (open != message.npos && close != message.npos && open < close) {
        message = message.substr(open + 1, close - open - 1);
      }
      const size_t colon = message.rfind(": ");
      return absl::StrCat("unreachable: ",
                          colon == message.npos ? message : message.substr(colon + 2));
    }
    case ErrorCode::kDeadlineExceeded:
      return absl::StrCat("no answer within ", format_duration(limit),
                          ": the task is stopped, busy or cut off");
    case ErrorCode::kCancelled:
      return "interrupted before the task answered";
    default:
      return message;
  }
}

void print_table(const std::vector<Row>& rows, Duration limit) {
  size_t task = 4, address = 7;
  for (const Row& row : rows) {
    task = std::max(task, row.task.size());
    address = std::max(address, row.address.size());
  }
  absl::PrintF("%-*s  %-*s  %-6s  %-16s  %-7s  %-7s  %s\n", task, "TASK", address, "ADDRESS",
               "ROLE", "INCARNATION", "UPTIME", "VERSION", "DEVICES");
  for (const Row& row : rows) {
    absl::PrintF("%-*s  %-*s  %-6s  ", task, row.task, address, row.address, row.role);
    if (row.answer.ok()) {
      absl::PrintF("%-16s  %-7s  %-7s  %s\n", format_incarnation(row.answer->incarnation),
                   format_duration(row.answer->uptime), row.answer->release,
                   short_device_names(row.answer->devices));
    } else {
      absl::PrintF("%s\n", short_reason(row, limit));
    }
  }
  for (const Row& row : rows) {
    if (!row.answer.ok()) continue;
    for (const std::string& line : row.answer->waits) absl::PrintF("%s: %s\n", row.task, line);
  }
}

void print_json(const std::vector<Row>& rows) {
  nlohmann::ordered_json tasks = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json task = {{"task", row.task},
                                   {"address", row.address},
                                   {"role", row.role},
                                   {"up", row.answer.ok()},
                                   {"serves", row.serves}};
    if (row.answer.ok()) {
      const TaskDescription& description = *row.answer;
      task["incarnation"] = format_incarnation(description.incarnation);
      task["uptime_seconds"] = std::chrono::duration<double>(description.uptime).count();
      task["version"] = description.release;
      task["host"] = description.host;
      task["pid"] = description.pid;
      task["devices"] = description.devices;
      task["counters"] = description.counters;
      task["waits"] = description.waits;
    } else {
      task["error_code"] = error_code_name(error_code(row.answer.status()));
      task["error"] = std::string(row.answer.status().message());
    }
    tasks.push_back(std::move(task));
  }
  std::printf("%s\n", nlohmann::ordered_json{{"tasks", tasks}}.dump(2).c_str());
}

int show(const StatusFlags& options) {
  if (!options.cluster.empty() && !options.target.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--cluster and --target cannot be used together: --cluster asks every task of a "
                "file, --target one address; give one of them");
  }
  const Duration limit =
      options.wait ? seconds_of("--wait", *options.wait) : seconds_of("--timeout", options.timeout);
  const Time deadline = after(limit);
  std::vector<Row> rows;
  if (!options.target.empty()) {
    rows = ask_target(options, deadline);
  } else {
    // The evaluator is not part of the training cluster, so no task waits for it.
    const ClusterSpec spec = resolve_cluster("", "", options.cluster).spec.without_evaluator();
    if (spec.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "no cluster was given to ask: give --cluster FILE or --target HOST:PORT, or set "
                  "TF_CONFIG");
    }
    rows = ask_cluster(spec, options, deadline);
  }
  if (options.variables) {
    std::vector<AskedServer> servers;
    for (const Row& row : rows) {
      if (row.answer.ok()) servers.push_back({row.task, row.address});
    }
    show_variables(servers, client_credentials(options.certs), limit,
                   seconds_of("--interval", options.interval), options.json);
  } else if (options.input) {
    TaskCounters tasks;
    for (const Row& row : rows) {
      if (row.answer.ok()) tasks.emplace_back(row.task, row.answer->counters);
    }
    show_input(tasks, options.json);
  } else {
    options.json ? print_json(rows) : print_table(rows, limit);
  }
  std::vector<std::string> missing;
  for (const Row& row : rows) {
    if (row.missing()) missing.push_back(row.task.empty() ? row.address : row.task);
  }
  if (!options.json) {
    const auto serving = std::ranges::count_if(rows, &Row::serves);
    absl::PrintF("%d of %d %s%s\n", serving - missing.size(), serving,
                 serving == 1 ? "task answers" : "tasks answer",
                 missing.empty() ? "" : "; missing: " + absl::StrJoin(missing, ", "));
  }
  return missing.empty() ? 0 : kRunTimeError;
}

}  // namespace

void add_status_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("status", "Show which tasks of a cluster are up");
  auto options = std::make_shared<StatusFlags>();
  command->add_option("--cluster", options->cluster, "The cluster as a JSON file")
      ->type_name("FILE");
  command->add_option("--target", options->target, "Ask only the server at this address")
      ->type_name("HOST:PORT");
  command->add_option("--certs", options->certs, "A folder with a client's certificates")
      ->type_name("DIR");
  command->add_flag("--json", options->json,
                    "Print JSON for programs: pids, hosts, counters, whole errors");
  command->add_flag("--variables", options->variables,
                    "Show the variables of each task: their bytes, reads and updates per second");
  command->add_flag("--input", options->input,
                    "Show the pipelines that tasks read data with, and where their time goes");
  command
      ->add_option("--interval", options->interval,
                   "Seconds over which --variables counts reads and updates")
      ->capture_default_str();
  command->add_option("--timeout", options->timeout, "Seconds until a silent task counts as down")
      ->capture_default_str();
  command->add_option("--wait", options->wait,
                      "Seconds to wait for tasks that are not up yet, printing which are missing");
  command->footer(kStatusFooter);
  command->callback(
      [&invocation, options] { invocation.run = [options] { return show(*options); }; });
}

}  // namespace trireme
