#include "cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format_bytes.h"

namespace trireme {
namespace {

constexpr auto kBeforeTheFirstLine = std::chrono::seconds(1);
constexpr auto kBetweenLines = std::chrono::milliseconds(100);
constexpr int kBarWidth = 24;
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

std::string progress_line(const std::string& what, uint64_t done, uint64_t total,
                          Duration elapsed) {
  const double share =
      total == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kBarWidth);
  const double seconds = std::max(1e-3, std::chrono::duration<double>(elapsed).count());
  return absl::StrFormat("%s [%s%s] %3d %%  %s of %s  %s/s", what, std::string(filled, '#'),
                         std::string(kBarWidth - filled, '.'), static_cast<int>(share * 100),
                         format_bytes(done), format_bytes(total),
                         format_bytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)));
}

ProgressBar::ProgressBar(std::string what, int fd, const Clock& clock)
    : what_(std::move(what)),
      fd_(fd),
      clock_(clock),
      is_terminal_(isatty(fd) == 1),
      start_(clock.now()),
      next_(start_ + kBeforeTheFirstLine) {}

ProgressBar::~ProgressBar() {
  if (shown_) write_text(kClearLine);
}

void ProgressBar::update(uint64_t done, uint64_t total) {
  if (!is_terminal_) return;
  const Time now = clock_.now();
  if (now < next_) return;
  next_ = now + kBetweenLines;
  shown_ = true;
  write_text(absl::StrCat(kClearLine, progress_line(what_, done, total, now - start_)));
}

void ProgressBar::write_text(const std::string& text) const {
  (void)!write(fd_, text.data(), text.size());
}

}  // namespace trireme
