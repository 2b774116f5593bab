#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/observe/terminal_line.h"

namespace trireme {

// Formats one line of a progress bar: "verify [#####.....]  50 %  2.0 GiB of 4.0 GiB  812 MiB/s".
std::string progress_line(const std::string& what, uint64_t done, uint64_t total, Duration elapsed);

// Shows on a terminal how far an operation is, once it has taken a second. Writes nothing to a file
// that is not a terminal. Its line is gone when the object is destroyed. Not thread-safe.
class ProgressBar {
 public:
  // `file` and `clock` must outlive the object.
  ProgressBar(std::string what, std::FILE* file, const Clock& clock = Clock::real());

  // Shows that `done` of `total` bytes are done.
  void update(uint64_t done, uint64_t total);

 private:
  const std::string what_;
  const Clock& clock_;
  const Time start_;
  TerminalLine line_;
};

}  // namespace trireme
