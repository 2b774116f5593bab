#pragma once

#include <cstdint>
#include <string>

#include "trireme/base/clock.h"

namespace trireme {

// Formats one line of a progress bar: "verify [#####.....]  50 %  2.0 GiB of 4.0 GiB  812 MiB/s".
std::string progress_line(const std::string& what, uint64_t done, uint64_t total, Duration elapsed);

// Shows on a terminal how far an operation is, once it has taken a second. Writes nothing to a file
// descriptor that is not a terminal. Its line is gone when the object is destroyed. Not
// thread-safe.
class ProgressBar {
 public:
  // `fd` and `clock` must outlive the object.
  ProgressBar(std::string what, int fd, const Clock& clock = Clock::real());
  ~ProgressBar();

  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Shows that `done` of `total` bytes are done.
  void update(uint64_t done, uint64_t total);

 private:
  void write_text(const std::string& text) const;

  const std::string what_;
  const int fd_;
  const Clock& clock_;
  const bool is_terminal_;
  const Time start_;
  Time next_;           // Time of the next change of the line.
  bool shown_ = false;  // True once there is a line to remove.
};

}  // namespace trireme
