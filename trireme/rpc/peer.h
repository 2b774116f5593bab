#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "trireme/cluster/task_id.h"

namespace trireme {

// The role of a peer: the job of a task, or kClient for a program that is not a task, such as
// `trireme status` or a coordinator that the cluster spec does not name.
enum class Role : uint8_t { kChief, kWorker, kPs, kEvaluator, kClient };

// Returns the role as it is written in certificates: "worker".
const char* role_name(Role role);
inline constexpr Role kEveryRole[] = {Role::kChief, Role::kWorker, Role::kPs, Role::kEvaluator,
                                      Role::kClient};

// A set of roles. Has no default constructor, so that every use names its roles.
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

// The identity of one side of a connection. A certificate names it by a URI among its alternative
// names (docs/decisions/roles-in-certificates.md):
//
//   trireme://worker/1        the task /job:worker/task:1
//   trireme://client          a client program
//   trireme://client/NAME     a client program with a name for logs
struct Peer {
  Role role = Role::kClient;
  std::string name;  // "/job:worker/task:1", "client" or "client NAME"

  // Returns nullopt if the URI does not have one of these forms.
  static std::optional<Peer> from_uri(const std::string& uri);
  // Returns the URI of a task. Throws Error if its job is not a role.
  static std::string uri_of(const TaskId& task);

  bool is_task() const { return role != Role::kClient; }
  bool operator==(const Peer&) const = default;
};

inline constexpr char kClientUri[] = "trireme://client";

}  // namespace trireme
