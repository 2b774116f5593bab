#pragma once

#include "trireme/model/callback.h"

namespace trireme {

// Ends a fit() when the loss is NaN or infinite. If workers run the steps, it learns of the loss
// when it arrives, some steps later.
class TerminateOnNan : public Callback {
 public:
  void on_batch_end(Fit& fit, const Logs& logs) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
};

}  // namespace trireme
