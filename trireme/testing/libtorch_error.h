#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <string>

namespace trireme {

// Returns the text of the exception of LibTorch that `work` throws, without the call stack, or "no
// error". The twin of error_text() (error_of.h) for errors that are LibTorch's own.
inline std::string libtorch_error(const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

}  // namespace trireme
