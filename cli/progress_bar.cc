#include "cli/progress_bar.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/format_bytes.h"

namespace trireme {
namespace {

constexpr auto kBeforeTheFirstLine = std::chrono::seconds(1);
constexpr auto kBetweenLines = std::chrono::milliseconds(100);
constexpr int kBarWidth = 24;

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

ProgressBar::ProgressBar(std::string what, std::FILE* file, const Clock& clock)
    : what_(std::move(what)),
      clock_(clock),
      start_(clock.now()),
      line_(file, kBetweenLines, kBeforeTheFirstLine, clock) {}

void ProgressBar::update(uint64_t done, uint64_t total) {
  if (line_.due()) line_.show(progress_line(what_, done, total, clock_.now() - start_));
}

}  // namespace trireme
