#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/cluster/environment.h"

// Helpers that the readers of this module share: parse small texts that people wrote, and reject
// malformed ones.
namespace trireme::internal {

// Maximum number of tasks, more than any cluster has. Checked before memory is allocated, because
// the numbers come from files and variables.
inline constexpr int kMaxTasks = 65536;

// Throws Error with the code kInvalidArgument.
[[noreturn]] void refuse(const std::string& message);

// Parses a number that consists of digits only, without sign or space. Returns nullopt if the text
// is not such a number or does not fit.
std::optional<int> parse_int(std::string_view text);

// Returns true if the text may be the name of a job in a device name: a letter or '_', followed by
// letters, digits and '_'.
bool is_name(std::string_view text);

std::string to_lower(std::string text);

// Formats a number with its noun: "1 task", "2 tasks".
std::string count(int number, const std::string& noun);

bool is_role(const std::string& job);
// Returns true for the roles that a cluster has at most once, with index 0: chief and evaluator.
bool is_single_role(const std::string& job);
inline constexpr const char* kRoles = "worker, chief, ps and evaluator";

// Returns the variable, or nullopt if it is not set. An empty value counts as not set, because that
// is how shells unset a variable for one command.
std::optional<std::string> lookup(const Environment& environment, const std::string& name);
// These throw Error if the variable is not set, or not a number from `low` to `high`. `why`
// explains the variable in the message.
std::string required(const Environment& environment, const std::string& name,
                     const std::string& why);
int required_int(const Environment& environment, const std::string& name, int low, int high,
                 const std::string& why);

// Calls `read`, and puts `place` in front of the message of an Error that it throws.
template <typename F>
auto in_context(const std::string& place, F&& read) {
  try {
    return std::forward<F>(read)();
  } catch (const Error& error) {
    throw Error(error.code(), place + ": " + error.message(), error.origin());
  }
}

}  // namespace trireme::internal
