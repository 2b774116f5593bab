#include "trireme/model/monitor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/logging.h"

namespace trireme::internal {
namespace {

bool has_any(const std::string& name, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts,
                             [&](const char* part) { return absl::StrContains(name, part); });
}

bool is_larger_better(const std::string& callback, const std::string& figure, MonitorMode mode) {
  if (mode != MonitorMode::kAuto) return mode == MonitorMode::kMax;
  if (has_any(figure, {"loss", "error"})) return false;
  if (has_any(figure, {"acc", "auc", "precision", "recall"})) return true;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat(callback, " cannot tell by its name if a larger or a smaller '", figure,
                           "' is better; set the option mode to MonitorMode::kMin or kMax"));
}

}  // namespace

Monitor::Monitor(std::string callback, std::string figure, MonitorMode mode, double min_delta)
    : callback_(std::move(callback)),
      figure_(std::move(figure)),
      larger_is_better_(is_larger_better(callback_, figure_, mode)),
      min_delta_(min_delta) {
  if (min_delta >= 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("the option min_delta of ", callback_, " is ", min_delta,
                           "; it must be 0 or more"));
}

std::optional<double> Monitor::read(const Logs& logs, int64_t epoch) {
  if (logs.contains(figure_)) {
    seen_ = true;
    return logs[figure_];
  }
  // A validation may come every few epochs only.
  if (!seen_) {
    seen_ = true;
    const auto name = [](std::string* out, const auto& one) { out->append(one.first); };
    log_warning(callback_, " watches the figure '", figure_, "', but epoch ", epoch,
                " has only: ", absl::StrJoin(logs.entries(), ", ", name),
                ". Figures of the validation need the option validation of fit()");
  }
  return std::nullopt;
}

bool Monitor::improves(double value, std::optional<double> reference) const {
  if (std::isnan(value)) return false;
  if (!reference) return true;
  return larger_is_better_ ? value - min_delta_ > *reference : value + min_delta_ < *reference;
}

}  // namespace trireme::internal
