#include "trireme/model/learning_rate_scheduler.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {

LearningRateScheduler::LearningRateScheduler(Schedule schedule) : schedule_(std::move(schedule)) {
  if (schedule_) return;
  throw Error(ErrorCode::kInvalidArgument,
              "LearningRateScheduler was given an empty function; pass one that returns the rate");
}

void LearningRateScheduler::on_train_begin(Fit&) {
  last_epoch_.reset();
}

void LearningRateScheduler::on_epoch_begin(Fit& fit) {
  if (last_epoch_ == fit.epoch()) return;
  last_epoch_ = fit.epoch();
  const double lr = schedule_(fit.epoch(), fit.lr());
  if (!(lr >= 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the function of LearningRateScheduler returned ", lr, " for epoch ",
                             fit.epoch(), "; it must return a learning rate of 0 or more"));
  }
  fit.set_lr(lr);
}

void LearningRateScheduler::on_epoch_end(Fit& fit, Logs& logs) {
  logs.set("learning_rate", fit.lr());
}

std::string LearningRateScheduler::save() const {
  return last_epoch_ ? absl::StrCat(*last_epoch_) : "";
}

void LearningRateScheduler::restore(const std::string& state) {
  last_epoch_.reset();
  if (state.empty()) return;
  int64_t epoch = 0;
  if (!absl::SimpleAtoi(state, &epoch)) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the saved state of LearningRateScheduler is malformed: '", state,
                             "' is not the number of an epoch"));
  }
  last_epoch_ = epoch;
}

}  // namespace trireme
