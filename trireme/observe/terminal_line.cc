#include "trireme/observe/terminal_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace trireme {
namespace {

constexpr char kClearLine[] = "\r\x1b[K";
constexpr size_t kUsualColumns = 80;

bool begins_character(char byte) {
  return (byte & 0xc0) != 0x80;
}

}  // namespace

size_t count_characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

TerminalLine::TerminalLine(std::FILE* file, Duration interval, Duration delay, const Clock& clock)
    : file_(file),
      interval_(interval),
      clock_(clock),
      is_terminal_(isatty(fileno(file)) == 1),
      next_(clock.now() + delay) {}

TerminalLine::~TerminalLine() {
  clear();
}

bool TerminalLine::due() const {
  return is_terminal_ && clock_.now() >= next_;
}

size_t TerminalLine::columns() const {
  winsize size = {};
  const bool known = ioctl(fileno(file_), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // The last column stays free, since some terminals begin a new line after it.
  return (known ? size.ws_col : kUsualColumns) - 1;
}

void TerminalLine::show(const std::string& text) {
  if (!is_terminal_) return;
  next_ = clock_.now() + interval_;
  shown_ = true;
  size_t bytes = 0;
  for (size_t left = columns(); bytes < text.size(); ++bytes) {
    if (begins_character(text[bytes]) && left-- == 0) break;
  }
  const std::string line = kClearLine + text.substr(0, bytes);
  std::fwrite(line.data(), 1, line.size(), file_);
  std::fflush(file_);
}

void TerminalLine::clear() {
  if (!shown_) return;
  shown_ = false;
  std::fputs(kClearLine, file_);
  std::fflush(file_);
}

}  // namespace trireme
