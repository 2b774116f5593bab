#include "trireme/cluster/cluster_spec.h"

#include <optional>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/cluster/address.h"
#include "trireme/cluster/json_text.h"
#include "trireme/cluster/text.h"

namespace trireme {
namespace {

using internal::refuse;

std::string place(const std::string& job) {
  return absl::StrCat("cluster spec: job '", job, "'");
}

std::string place(const std::string& job, int index) {
  return absl::StrCat(place(job), ", task ", index);
}

constexpr char kTwice[] = " is given twice; give each task of a job its own index";

std::string address_in(const nlohmann::json& value, const std::string& where) {
  if (!value.is_string()) {
    refuse(absl::StrCat(where, ": ", value.dump(), " is not a valid address; write \"host:port\""));
  }
  return value.get<std::string>();
}

TaskAddresses addresses_in(const nlohmann::json& value, const std::string& job) {
  if (value.is_array()) {
    std::vector<std::string> addresses;
    for (const nlohmann::json& address : value) {
      const int index = static_cast<int>(addresses.size());
      addresses.push_back(address_in(address, place(job, index)));
    }
    return addresses;
  }
  if (!value.is_object()) {
    refuse(absl::StrCat(place(job), ": ", value.dump(),
                        " is not a list of addresses; write [\"host:port\"] or, with gaps, "
                        "{\"0\": \"host:port\"}"));
  }
  std::map<int, std::string> addresses;
  for (const auto& [key, address] : value.items()) {
    const std::optional<int> index = internal::parse_int(key);
    if (!index) refuse(absl::StrCat(place(job), ": '", key, "' is not a valid task index"));
    if (!addresses.emplace(*index, address_in(address, place(job, *index))).second) {
      refuse(absl::StrCat(place(job, *index), kTwice));
    }
  }
  return addresses;
}

}  // namespace

TaskAddresses::TaskAddresses(std::initializer_list<std::string> addresses)
    : TaskAddresses(std::vector<std::string>(addresses)) {}

TaskAddresses::TaskAddresses(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    tasks_.emplace_back(static_cast<int>(tasks_.size()), address);
  }
}

TaskAddresses::TaskAddresses(std::initializer_list<std::pair<int, std::string>> sparse)
    : tasks_(sparse) {}

TaskAddresses::TaskAddresses(const std::map<int, std::string>& sparse)
    : tasks_(sparse.begin(), sparse.end()) {}

ClusterSpec::ClusterSpec(std::initializer_list<std::pair<std::string, TaskAddresses>> jobs) {
  for (const auto& [job, addresses] : jobs) add(job, addresses);
  check();
}

ClusterSpec::ClusterSpec(const std::map<std::string, TaskAddresses>& jobs) {
  for (const auto& [job, addresses] : jobs) add(job, addresses);
  check();
}

ClusterSpec ClusterSpec::from_json(const std::string& text) {
  const nlohmann::json value = internal::parse_json(text, "cluster spec");
  if (!value.is_object()) {
    refuse("cluster spec: is not an object of jobs; write {\"worker\": [\"host:port\"]}");
  }
  ClusterSpec spec;
  for (const auto& [job, addresses] : value.items()) spec.add(job, addresses_in(addresses, job));
  spec.check();
  return spec;
}

std::string ClusterSpec::to_json() const {
  nlohmann::json value = nlohmann::json::object();
  for (const auto& [job, tasks] : jobs_) {
    const bool gaps = tasks.rbegin()->first + 1 != static_cast<int>(tasks.size());
    for (const auto& [index, address] : tasks) {
      if (gaps) {
        value[job][std::to_string(index)] = address;
      } else {
        value[job].push_back(address);
      }
    }
  }
  return value.dump();
}

bool ClusterSpec::has_task(const TaskId& task) const {
  const auto job = jobs_.find(task.job);
  return job != jobs_.end() && job->second.contains(task.index);
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

std::vector<TaskId> ClusterSpec::tasks(const std::string& job) const {
  std::vector<TaskId> ids;
  if (!has_job(job)) return ids;
  for (const auto& [index, address] : jobs_.at(job)) ids.push_back({job, index});
  return ids;
}

std::vector<TaskId> ClusterSpec::all_tasks() const {
  std::vector<TaskId> ids;
  for (const auto& [job, tasks] : jobs_) {
    for (const auto& [index, address] : tasks) ids.push_back({job, index});
  }
  return ids;
}

int ClusterSpec::num_tasks(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? 0 : static_cast<int>(found->second.size());
}

const std::string& ClusterSpec::address(const TaskId& task) const {
  const auto job = jobs_.find(task.job);
  if (job == jobs_.end()) {
    const std::string there = empty() ? "it is empty" : "it has " + absl::StrJoin(jobs(), ", ");
    throw Error(ErrorCode::kNotFound,
                absl::StrCat("cluster spec: there is no job '", task.job, "'; ", there,
                             ". Add the job, or check its name"));
  }
  const std::map<int, std::string>& tasks = job->second;
  const auto found = tasks.find(task.index);
  if (found == tasks.end()) {
    const int size = static_cast<int>(tasks.size());
    const int first = tasks.begin()->first, last = tasks.rbegin()->first;
    std::string range = absl::StrCat(", ", first);
    if (last > first) absl::StrAppend(&range, " to ", last);
    if (last - first + 1 > size) range += " with gaps";
    throw Error(ErrorCode::kOutOfRange,
                absl::StrCat(place(task.job), " has no task ", task.index, "; it has ",
                             internal::count(size, "task"), range));
  }
  return found->second;
}

bool ClusterSpec::serves(const TaskId& task) const {
  if (!has_task(task) || task.job == "evaluator") return false;
  return task.job != "chief" || !has_job("ps");
}

void ClusterSpec::check_ports() const {
  for (const auto& [job, tasks] : jobs_) {
    for (const auto& [index, address] : tasks) {
      if (internal::Address::parse_own(address).port != 0) continue;
      refuse(absl::StrCat(place(job, index), ": the port of '", address,
                          "' is not known, since the task's server picks it; give the port that "
                          "the server listens on"));
    }
  }
}

ClusterSpec ClusterSpec::without_evaluator() const {
  ClusterSpec training = *this;
  training.jobs_.erase("evaluator");
  return training;
}

void ClusterSpec::add(const std::string& job, const TaskAddresses& addresses) {
  if (!internal::is_role(job)) {
    refuse(absl::StrCat(place(job), " is not a valid role; the roles are ", internal::kRoles));
  }
  if (addresses.tasks().empty()) return;
  if (has_job(job)) refuse(absl::StrCat(place(job), " is given twice"));
  std::map<int, std::string>& tasks = jobs_[job];
  for (const auto& [index, address] : addresses.tasks()) {
    if (index < 0 || index >= internal::kMaxTasks) {
      throw Error(ErrorCode::kOutOfRange,
                  absl::StrCat(place(job), ": task index ", index, " is not from 0 to ",
                               internal::kMaxTasks - 1));
    }
    if (!tasks.emplace(index, address).second) {
      refuse(absl::StrCat(place(job, index), kTwice));
    }
  }
}

void ClusterSpec::check() const {
  std::unordered_map<std::string, TaskId> owners;  // tasks by their normalized address
  for (const auto& [job, tasks] : jobs_) {
    if (internal::is_single_role(job)) {
      if (tasks.size() > 1) {
        refuse(absl::StrCat(place(job), " has ", tasks.size(), " tasks; a cluster has one ", job,
                            " at most"));
      }
      if (tasks.begin()->first != 0) {
        refuse(absl::StrCat(place(job, tasks.begin()->first), ": the only ", job, " is task 0"));
      }
    }
    for (const auto& [index, address] : tasks) {
      const std::string where = place(job, index);
      const auto parsed = internal::in_context(
          where, [&text = address] { return internal::Address::parse_own(text); });
      if (parsed.port == 0) continue;  // each server picks another
      const auto [owner, is_new] = owners.emplace(parsed.to_string(), TaskId{job, index});
      if (!is_new) {
        refuse(absl::StrCat(where, ": address '", address, "' is already used by ",
                            owner->second.to_string(), "; every task needs its own"));
      }
    }
  }
}

}  // namespace trireme
