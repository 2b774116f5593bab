#include "trireme/model/terminate_on_nan.h"

#include <cmath>

#include "trireme/base/logging.h"

namespace trireme {
namespace {

void stop_unless_finite(Fit& fit, const Logs& logs) {
  if (fit.stopped() || !logs.contains("loss") || std::isfinite(logs["loss"])) return;
  log_warning("the loss is ", logs["loss"], " in step ", fit.step_of_epoch(), " of epoch ",
              fit.epoch(), "; TerminateOnNan ends the fit");
  fit.stop();
}

}  // namespace

void TerminateOnNan::on_batch_end(Fit& fit, const Logs& logs) {
  stop_unless_finite(fit, logs);
}

void TerminateOnNan::on_epoch_end(Fit& fit, Logs& logs) {
  stop_unless_finite(fit, logs);
}

}  // namespace trireme
