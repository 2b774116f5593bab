#include "cli/command.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/clock.h"
#include "trireme/base/status.h"
#include "trireme/cluster/flags.h"
#include "trireme/runtime/cluster_status.h"

namespace trireme {

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kOutOfRange:
    case ErrorCode::kPermissionDenied:
      return kUsageError;
    default:
      return kRunTimeError;
  }
}

void say(const std::string& line) {
  const std::string text = absl::StrCat("trireme: ", line, "\n");
  (void)!write(STDERR_FILENO, text.data(), text.size());
}

std::string text_of(const Error& error) {
  const bool named = error.message().rfind(error.origin().task, 0) == 0;
  return named ? error.message() : error.what();
}

Cluster resolve_cluster(const std::string& job, const std::string& task, const std::string& file) {
  const FlagNames names = {.task_type = "--job", .task_index = "--task"};
  std::vector<std::string> words = {"trireme"};
  if (!job.empty()) words.push_back(absl::StrCat(names.task_type, "=", job));
  if (!task.empty()) words.push_back(absl::StrCat(names.task_index, "=", task));
  if (!file.empty()) words.push_back(absl::StrCat(names.cluster, "=", file));
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return resolve(Flags(static_cast<int>(argv.size()), argv.data(), names));
}

Credentials client_credentials(const std::string& certs) {
  if (certs.empty()) return Credentials::insecure();
  return value_or_throw(Credentials::from_folder(certs, std::nullopt));
}

std::function<void(const std::vector<TaskId>&)> report_missing_tasks(const ClusterSpec& spec) {
  return [spec, last = size_t{0}, again = Time::min()](const auto& missing) mutable {
    const Time now = Clock::real().now();
    if (missing.size() == last && now < again) return;
    last = missing.size();
    again = now + std::chrono::seconds(10);
    say("waiting for " + list_tasks(spec, missing));
  };
}

std::chrono::milliseconds seconds_of(const std::string& flag, double seconds) {
  constexpr double kMost = 1e7;  // More than a hundred days.
  if (!(seconds > 0) || seconds > kMost) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat(flag, "=", seconds,
                     " is not a valid time; give a number of seconds above 0 and up to 1e7"));
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace trireme
