#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/model/logs.h"

namespace trireme {

// Ways to compare two values of a figure.
enum class MonitorMode {
  // kMax for accuracies, AUC, precision and recall, and kMin for losses and errors, by their names.
  // Other figures need one of the ways below.
  kAuto,
  kMin,  // a smaller value is better
  kMax,  // a larger value is better
};

namespace internal {

// Watches one figure for a callback. Not synchronised.
class Monitor {
 public:
  // Throws Error, which names the callback, if `min_delta` is below 0, or if kAuto does not know
  // the figure.
  Monitor(std::string callback, std::string figure, MonitorMode mode, double min_delta);

  // Returns the figure of an epoch, or nullopt if the epoch does not have it. Warns if no epoch had
  // it so far.
  std::optional<double> read(const Logs& logs, int64_t epoch);
  // Returns true if `value` is better than `reference` by more than min_delta. Every value but NaN
  // is better than none.
  bool improves(double value, std::optional<double> reference) const;

 private:
  std::string callback_;
  std::string figure_;
  bool larger_is_better_;
  double min_delta_;
  bool seen_ = false;  // True once an epoch had the figure, or it was warned that none has it.
};

}  // namespace internal
}  // namespace trireme
