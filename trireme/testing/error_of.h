#pragma once

#include <functional>
#include <string>

#include "trireme/base/error.h"

namespace trireme {

// Returns the Error that `work` throws, or an Error with code kOk and text "no error" if it throws
// none.
inline Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kOk, "no error");
}

// Returns what() of the Error that `work` throws, or "no error".
inline std::string error_text(const std::function<void()>& work) {
  return error_of(work).what();
}

}  // namespace trireme
