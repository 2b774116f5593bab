#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "trireme/base/clock.h"

namespace trireme {

// A line at the end of a terminal's output that changes while something runs. Does nothing if the
// file is not a terminal. The line is removed when the object is destroyed. Not thread-safe.
class TerminalLine {
 public:
  // `file` and `clock` must outlive the object. A new text is shown at most once in `interval`, and
  // the first one after `delay`.
  TerminalLine(std::FILE* file, Duration interval, Duration delay = {},
               const Clock& clock = Clock::real());
  ~TerminalLine();

  TerminalLine(const TerminalLine&) = delete;
  TerminalLine& operator=(const TerminalLine&) = delete;

  // Returns true if the file is a terminal.
  bool is_terminal() const { return is_terminal_; }
  // Returns true if it is a terminal and show() may be called now.
  bool due() const;
  // Returns the number of characters that fit on the line.
  size_t columns() const;
  // Replaces the line's text, which has no line end. Cuts off the characters that do not fit.
  void show(const std::string& text);
  // Removes the line, if there is one.
  void clear();

 private:
  std::FILE* const file_;
  const Duration interval_;
  const Clock& clock_;
  const bool is_terminal_;
  Time next_;           // Time of the next change of the text.
  bool shown_ = false;  // True while there is a line to remove.
};

// Returns the number of characters of a text in UTF-8.
size_t count_characters(const std::string& text);

}  // namespace trireme
