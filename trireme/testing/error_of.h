#pragma once

#include <functional>
#include <string>

#include "trireme/base/error.h"

namespace trireme {

// What a call throws; kOk, "no error", if it does not.
inline Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kOk, "no error");
}

inline std::string error_text(const std::function<void()>& work) {
  return error_of(work).what();
}

}  // namespace trireme
