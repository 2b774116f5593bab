#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "trireme/base/error.h"
#include "trireme/cluster/environment.h"

// Helpers for the tests of this module, which compare whole messages, since users see them.
namespace trireme {

// Returns the message of the Error that `function` throws, and expects its code.
template <typename F>
std::string error_of(F&& function, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error_code_name(error.code()), std::string(error_code_name(code))) << error.what();
    return error.what();
  }
  return "(no error)";
}

// Returns an environment that has only these variables.
inline Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace trireme
