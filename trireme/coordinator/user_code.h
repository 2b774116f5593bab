#pragma once

#include <exception>

#include "trireme/base/error.h"

namespace trireme::internal {

// Calls a function of the user and returns its result. Converts an exception that is not a
// std::exception into an Error.
template <typename F>
auto call_user_code(F&& function) {
  try {
    return function();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    throw Error(ErrorCode::kUnknown, "it threw an object that is not a std::exception");
  }
}

}  // namespace trireme::internal
