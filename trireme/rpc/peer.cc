#include "trireme/rpc/peer.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace trireme {
namespace {

constexpr char kScheme[] = "trireme://";
constexpr size_t kMaxName = 64;

std::optional<Role> parse_role(const std::string& name) {
  for (Role role : kEveryRole) {
    if (name == role_name(role)) return role;
  }
  return std::nullopt;
}

// Returns true if the name can be written to logs as it is.
bool is_plain(const std::string& name) {
  if (name.empty() || name.size() > kMaxName) return false;
  for (char c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.' && c != '@') return false;
  }
  return true;
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::kChief:
      return "chief";
    case Role::kWorker:
      return "worker";
    case Role::kPs:
      return "ps";
    case Role::kEvaluator:
      return "evaluator";
    case Role::kClient:
      return "client";
  }
  return "unknown";
}

std::string Roles::to_string() const {
  std::string out;
  for (Role role : kEveryRole) {
    if (contains(role)) absl::StrAppend(&out, out.empty() ? "" : ", ", role_name(role));
  }
  return out;
}

std::optional<Peer> Peer::from_uri(const std::string& uri) {
  if (!absl::StartsWith(uri, kScheme)) return std::nullopt;
  const std::string rest = uri.substr(sizeof(kScheme) - 1);
  const size_t slash = rest.find('/');
  const std::optional<Role> role = parse_role(rest.substr(0, slash));
  if (!role) return std::nullopt;
  if (*role == Role::kClient) {
    if (slash == std::string::npos) return Peer{*role, "client"};
    const std::string name = rest.substr(slash + 1);
    if (!is_plain(name)) return std::nullopt;
    return Peer{*role, absl::StrCat("client ", name)};
  }
  if (slash == std::string::npos) return std::nullopt;
  const std::string index = rest.substr(slash + 1);
  int number = 0;
  // A task has exactly one URI, so forms such as "01" or "+1" are rejected.
  if (!absl::SimpleAtoi(index, &number) || number < 0 || absl::StrCat(number) != index) {
    return std::nullopt;
  }
  return Peer{*role, TaskId{role_name(*role), number}.to_string()};
}

std::string Peer::uri_of(const TaskId& task) {
  const std::string uri = absl::StrCat(kScheme, task.job, "/", task.index);
  if (!from_uri(uri)) {
    throw Error(ErrorCode::kInvalidArgument, absl::StrCat("the task ", task.to_string(),
                                                          " has no role that a certificate "
                                                          "can name"));
  }
  return uri;
}

}  // namespace trireme
