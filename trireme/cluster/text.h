#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/cluster/environment.h"

// What the readers of this module share: small texts that people wrote, and how to refuse them.
namespace trireme::internal {

// More tasks than any cluster has. Checked before anything is allocated, since the numbers come
// from files and variables.
inline constexpr int kMaxTasks = 65536;

[[noreturn]] void refuse(const std::string& message);

// Digits only: no sign, no space. Nothing if it is no number or does not fit.
std::optional<int> parse_int(std::string_view text);

// A letter or '_', then digits as well: what a job may be called in a device name.
bool is_name(std::string_view text);

std::string to_lower(std::string text);

// "1 task", "2 tasks".
std::string count(int number, const std::string& noun);

bool is_role(const std::string& job);
// The two roles that a cluster has once at most; their index is 0.
bool is_single_role(const std::string& job);
inline constexpr const char* kRoles = "worker, chief, ps and evaluator";

// A variable that is set to nothing counts as not set: that is how shells unset one for a command.
std::optional<std::string> lookup(const Environment& environment, const std::string& name);
// These refuse what is missing or out of range; `why` tells what the variable is.
std::string required(const Environment& environment, const std::string& name,
                     const std::string& why);
int required_int(const Environment& environment, const std::string& name, int low, int high,
                 const std::string& why);

// Whatever `read` refuses is refused with the place in front.
template <typename F>
auto in_context(const std::string& place, F&& read) {
  try {
    return std::forward<F>(read)();
  } catch (const Error& error) {
    throw Error(error.code(), place + ": " + error.message(), error.origin());
  }
}

}  // namespace trireme::internal
