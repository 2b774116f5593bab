#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "trireme/cluster/task_id.h"

namespace trireme {

// What a peer may be. A client is a program that is no task: `trireme status`, a coordinator that
// the cluster spec does not name.
enum class Role : uint8_t { kChief, kWorker, kPs, kEvaluator, kClient };

const char* role_name(Role role);
inline constexpr Role kEveryRole[] = {Role::kChief, Role::kWorker, Role::kPs, Role::kEvaluator,
                                      Role::kClient};

// A set of roles. Without a default: whoever needs one has to say which.
class Roles {
 public:
  constexpr Roles(std::initializer_list<Role> roles) {
    for (Role role : roles) bits_ |= bit(role);
  }
  static constexpr Roles all() {
    return {Role::kChief, Role::kWorker, Role::kPs, Role::kEvaluator, Role::kClient};
  }

  constexpr bool contains(Role role) const { return bits_ & bit(role); }
  constexpr bool empty() const { return bits_ == 0; }
  std::string to_string() const;  // "chief, client"

 private:
  static constexpr uint8_t bit(Role role) { return uint8_t{1} << static_cast<uint8_t>(role); }
  uint8_t bits_ = 0;
};

// Who is at the other end of a connection, as its certificate says. Certificates say it with a URI
// among their alternative names (docs/decisions/roles-in-certificates.md):
//
//   trireme://worker/1        the task /job:worker/task:1
//   trireme://client          a program; trireme://client/NAME if it is to have a name in logs
struct Peer {
  Role role = Role::kClient;
  std::string name;  // "/job:worker/task:1", "client", "client NAME"

  static std::optional<Peer> from_uri(const std::string& uri);
  // Throws Error for a job that is no role.
  static std::string uri_of(const TaskId& task);

  bool is_task() const { return role != Role::kClient; }
  bool operator==(const Peer&) const = default;
};

inline constexpr char kClientUri[] = "trireme://client";

}  // namespace trireme
