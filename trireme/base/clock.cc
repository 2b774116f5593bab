#include "trireme/base/clock.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trireme {
namespace {

class RealClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

Clock& Clock::real() {
  static RealClock clock;
  return clock;
}

int64_t milliseconds_until(Time time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time - Clock::real().now()).count();
}

Time after_milliseconds(int64_t milliseconds) {
  constexpr int64_t kDay = 24 * 60 * 60 * 1000;
  return after(std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 0, kDay)));
}

std::string format_duration(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  if (ms < 1000) return absl::StrCat(ms, "ms");
  const auto seconds = ms / 1000;
  if (seconds < 60) return absl::StrFormat("%.1fs", static_cast<double>(ms) / 1000);
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m ", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h ", seconds / 60 % 60, "m");
  return absl::StrCat(seconds / 86400, "d ", seconds / 3600 % 24, "h");
}

}  // namespace trireme
