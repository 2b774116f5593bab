#include "cli/variables.h"

#include <cstdio>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "trireme/base/mutex.h"
#include "trireme/base/signals.h"
#include "trireme/base/status.h"
#include "trireme/ps/variable_list.h"

namespace trireme {
namespace {

using Lists = std::vector<VariableList>;

// Asks all servers in parallel. Throws Error if one does not answer within the limit.
Lists ask(std::vector<std::unique_ptr<Channel>>& channels, Duration limit) {
  using Answer = std::promise<absl::StatusOr<VariableList>>;
  std::vector<std::shared_ptr<Answer>> answers;
  for (auto& channel : channels) {
    answers.push_back(std::make_shared<Answer>());
    list_variables(*channel, after(limit),
                   [answer = answers.back()](auto list) { answer->set_value(std::move(list)); });
  }
  Lists lists;
  for (auto& answer : answers) lists.push_back(value_or_throw(answer->get_future().get()));
  return lists;
}

// Waits for the interval, or until a signal asks the process to end.
void wait_for(Duration interval) {
  StopOnSignal signals;
  Mutex mutex;
  CondVar stopped;
  std::stop_callback on_stop(signals.token(), [&] {
    MutexLock lock(mutex);
    stopped.notify_all();
  });
  const Time end = after(interval);
  MutexLock lock(mutex);
  while (!signals.token().stop_requested() && stopped.wait_until(mutex, end)) {
  }
}

struct Line {
  std::string task;
  VariableList::Entry variable;
  double reads = 0, updates = 0;  // Per second.
};

std::vector<Line> lines_of(const std::vector<AskedServer>& servers, const Lists& before,
                           const Lists& now, double seconds) {
  std::vector<Line> lines;
  for (size_t i = 0; i < servers.size(); ++i) {
    using Key = std::tuple<std::string, std::string, std::string>;
    std::map<Key, const VariableList::Entry*> earlier;
    for (const auto& entry : before[i].variables) {
      earlier[{entry.job, entry.container, entry.name}] = &entry;
    }
    for (const auto& entry : now[i].variables) {
      Line line{servers[i].task, entry};
      const auto found = earlier.find({entry.job, entry.container, entry.name});
      // Counts that went down are those of a variable that was created anew; it has no rates yet.
      if (found != earlier.end() && found->second->reads <= entry.reads &&
          found->second->updates <= entry.updates) {
        line.reads = (entry.reads - found->second->reads) / seconds;
        line.updates = (entry.updates - found->second->updates) / seconds;
      }
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

void print_table(const std::vector<Line>& lines, const std::vector<AskedServer>& servers,
                 const Lists& lists) {
  size_t job = 3, name = 8, task = 4, shape = 5;
  for (const Line& line : lines) {
    job = std::max(job, line.variable.job.size());
    name = std::max(name, line.variable.container.size() + line.variable.name.size() + 1);
    task = std::max(task, line.task.size());
    shape = std::max(shape, line.variable.shape.size());
  }
  absl::PrintF("%-*s  %-*s  %-*s  %-*s  %10s  %10s  %9s  %9s  %s\n", task, "TASK", job, "JOB", name,
               "VARIABLE", shape, "SHAPE", "BYTES", "STATE", "READS/S", "UPDATES/S", "OPTIMIZER");
  for (const Line& line : lines) {
    const VariableList::Entry& variable = line.variable;
    absl::PrintF("%-*s  %-*s  %-*s  %-*s  %10s  %10s  %9.1f  %9.1f  %s\n", task, line.task, job,
                 variable.job.empty() ? "-" : variable.job, name,
                 absl::StrCat(variable.container, ":", variable.name), shape, variable.shape,
                 format_bytes(variable.bytes), format_bytes(variable.state_bytes), line.reads,
                 line.updates, variable.optimizer);
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    if (lists[i].variables.empty()) continue;
    absl::PrintF("%s: %d variables, %s%s; %d writers, %s of push records\n", servers[i].task,
                 lists[i].variables.size(), format_bytes(lists[i].bytes),
                 lists[i].limit == 0 ? "" : " of " + format_bytes(lists[i].limit), lists[i].writers,
                 format_bytes(lists[i].record_bytes));
  }
  if (lines.empty()) absl::PrintF("no task holds variables\n");
}

void print_json(const std::vector<Line>& lines, const std::vector<AskedServer>& servers,
                const Lists& lists) {
  nlohmann::ordered_json variables = nlohmann::ordered_json::array(), tasks = variables;
  for (const Line& line : lines) {
    variables.push_back({{"task", line.task},
                         {"job", line.variable.job},
                         {"container", line.variable.container},
                         {"name", line.variable.name},
                         {"shape", line.variable.shape},
                         {"bytes", line.variable.bytes},
                         {"state_bytes", line.variable.state_bytes},
                         {"record_bytes", line.variable.record_bytes},
                         {"reads", line.variable.reads},
                         {"updates", line.variable.updates},
                         {"reads_per_second", line.reads},
                         {"updates_per_second", line.updates},
                         {"optimizer", line.variable.optimizer}});
  }
  for (size_t i = 0; i < servers.size(); ++i) {
    tasks.push_back({{"task", servers[i].task},
                     {"bytes", lists[i].bytes},
                     {"limit", lists[i].limit},
                     {"writers", lists[i].writers},
                     {"record_bytes", lists[i].record_bytes}});
  }
  std::printf("%s\n",
              nlohmann::ordered_json{{"variables", variables}, {"tasks", tasks}}.dump(2).c_str());
}

}  // namespace

void show_variables(const std::vector<AskedServer>& servers, const Credentials& credentials,
                    Duration limit, Duration interval, bool json) {
  std::vector<std::unique_ptr<Channel>> channels;
  for (const AskedServer& server : servers) {
    channels.push_back(std::make_unique<Channel>(ChannelOptions{
        .address = server.address, .task = server.task, .credentials = credentials}));
  }
  const Time start = Clock::real().now();
  const Lists before = ask(channels, limit);
  wait_for(interval);
  const Lists now = ask(channels, limit);
  const double seconds = std::chrono::duration<double>(Clock::real().now() - start).count();
  const std::vector<Line> lines = lines_of(servers, before, now, seconds);
  json ? print_json(lines, servers, now) : print_table(lines, servers, now);
}

}  // namespace trireme
