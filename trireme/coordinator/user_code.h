#pragma once

#include <exception>

#include "trireme/base/error.h"

namespace trireme::internal {

// Calls code of the user: whatever it throws is a std::exception afterwards.
template <typename F>
auto call_user_code(F&& function) {
  try {
    return function();
  } catch (const std::exception&) {
    throw;
  } catch (...) {
    throw Error(ErrorCode::kUnknown, "it threw something that is no std::exception");
  }
}

}  // namespace trireme::internal
