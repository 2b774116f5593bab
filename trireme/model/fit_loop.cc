#include "trireme/model/fit_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/access.h"
#include "trireme/base/error.h"

namespace trireme::internal {

FitLoop::FitLoop(FitState& state, const StepFunction& train, const FitLoopOptions& options)
    : state_(state),
      train_(train),
      options_(options),
      fit_(Access<Fit>::make(state)),
      callbacks_(state.parts_.callbacks),
      executions_(*state.parts_.runner) {
  callbacks_.insert(callbacks_.end(), options.own_callbacks.begin(), options.own_callbacks.end());
}

template <typename Call>
void FitLoop::call_all(const Call& call) {
  Fit fit = fit_;
  for (const AnyCallback& callback : callbacks_) call(*callback, fit);
}

void FitLoop::run() {
  try {
    run_epochs();
  } catch (const FitRestart&) {
    join_quietly(*state_.parts_.runner);
    throw;
  } catch (...) {
    join_quietly(*state_.parts_.runner);
    state_.agreement_.fail("fit()");
    throw;
  }
}

void FitLoop::run_epochs() {
  call_all([](Callback& callback, Fit& fit) { callback.on_train_begin(fit); });
  const std::vector<std::string> states = std::exchange(state_.callback_states_, {});
  for (size_t i = 0; i < states.size(); ++i) state_.parts_.callbacks[i]->restore(states[i]);
  state_.agree(false);
  while (state_.place_.epoch < state_.place_.epochs && !state_.stopped_) run_epoch();
  call_all([&](Callback& callback, Fit& fit) { callback.on_train_end(fit, logs_); });
}

void FitLoop::run_epoch() {
  FitPlace& place = state_.place_;
  if (std::exchange(place.data_used, false)) state_.parts_.data->restart();
  data_ended_ = epoch_cut_ = false;
  logs_ = Logs();
  call_all([](Callback& callback, Fit& fit) { callback.on_epoch_begin(fit); });
  run_steps();
  drain();
  state_.join();
  if (state_.sums_.steps() == 0 && !epoch_cut_) {
    throw Error(ErrorCode::kInvalidArgument,
                "the data of fit() has too few batches for a step, which draws accumulate_steps of "
                "them for each replica of the strategy; give it more examples, or make batches "
                "smaller");
  }
  if (options_.steps_per_epoch == 0) {
    place.data_used = true;
    if (!epoch_cut_) place.steps_per_epoch = place.step_of_epoch;
  }
  state_.sums_.write("", logs_);
  if (options_.validate != nullptr && (place.epoch + 1) % options_.validation_freq == 0) {
    call_all([](Callback& callback, Fit& fit) { callback.on_validation_begin(fit); });
    options_.validate(logs_);
    call_all([&](Callback& callback, Fit& fit) { callback.on_validation_end(fit, logs_); });
  }
  call_all([&](Callback& callback, Fit& fit) { callback.on_epoch_end(fit, logs_); });
  state_.history_.add(place.epoch, logs_);
  ++place.epoch;
  place.step_of_epoch = 0;
  state_.sums_.clear();
  state_.agree(false);
  call_save_points(/*epoch_ended=*/true);
}

void FitLoop::run_steps() {
  FitPlace& place = state_.place_;
  const int64_t limit = options_.steps_per_epoch;
  while (!data_ended_ && !epoch_cut_ && (limit == 0 || place.step_of_epoch < limit)) {
    int64_t steps = options_.steps_per_execution;
    if (limit > 0) steps = std::min(steps, limit - place.step_of_epoch);
    set_rate();
    executions_.start(train_, state_.parts_.data, steps);
    place.step += steps;
    place.step_of_epoch += steps;
    while (const auto result = executions_.take()) absorb(*result);
    epoch_cut_ = state_.agree(epoch_cut_);
    call_save_points(/*epoch_ended=*/false);
  }
}

void FitLoop::set_rate() {
  const auto& optimizer = state_.parts_.optimizer;
  if (!optimizer || !state_.follows_schedule_ || optimizer->schedule() == nullptr) return;
  const double rate = optimizer->schedule()(state_.place_.step);
  if (rate == rate_set_) return;
  optimizer->set_lr(rate);
  rate_set_ = rate;
}

void FitLoop::absorb(const Executions::Result& result) {
  if (result.steps < result.asked) {
    data_ended_ = true;
    state_.place_.step -= result.asked - result.steps;
    state_.place_.step_of_epoch -= result.asked - result.steps;
  }
  state_.sums_.add(result.sums);
  if (data_ended_ && options_.steps_per_epoch > 0) throw_exhausted();
  if (result.steps == 0 || callbacks_.empty()) return;
  state_.sums_.write("", logs_);
  const bool stopped_before = state_.stopped_;
  call_all([&](Callback& callback, Fit& fit) { callback.on_batch_end(fit, logs_); });
  if (state_.stopped_ && !stopped_before) epoch_cut_ = true;
}

void FitLoop::throw_exhausted() const {
  const FitPlace& place = state_.place_;
  throw Error(ErrorCode::kEndOfData,
              absl::StrCat("fit() ran out of data in epoch ", place.epoch + 1, " of ", place.epochs,
                           ", after ", state_.sums_.steps(), " of the ", options_.steps_per_epoch,
                           " steps that steps_per_epoch asks for; add repeat() to the dataset, or "
                           "ask for fewer steps or epochs"));
}

void FitLoop::drain() {
  while (const auto result = executions_.wait()) absorb(*result);
}

void FitLoop::call_save_points(bool epoch_ended) {
  for (size_t i = 0; i < state_.save_points_.size(); ++i) {
    if (!state_.save_points_[i].due(epoch_ended)) continue;
    drain();
    state_.join();
    state_.save_points_[i].save();
  }
}

}  // namespace trireme::internal
