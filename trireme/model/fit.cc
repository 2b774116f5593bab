#include "trireme/model/callback.h"
#include "trireme/model/fit_state.h"

namespace trireme {

void Fit::stop() {
  state_->stop();
}

bool Fit::stopped() const {
  return state_->stopped();
}

int64_t Fit::epoch() const {
  return state_->place().epoch;
}

int64_t Fit::epochs() const {
  return state_->place().epochs;
}

int64_t Fit::step() const {
  return state_->place().step;
}

int64_t Fit::step_of_epoch() const {
  return state_->place().step_of_epoch;
}

int64_t Fit::steps_per_epoch() const {
  return state_->place().steps_per_epoch;
}

bool Fit::runs_here() const {
  return state_->runs_here();
}

bool Fit::is_chief() const {
  return state_->agreement().is_chief();
}

const History& Fit::history() const {
  return state_->history();
}

double Fit::lr() const {
  return state_->lr();
}

void Fit::set_lr(double lr) {
  state_->set_lr(lr);
}

std::vector<Variable> Fit::variables() const {
  return state_->variables();
}

void Fit::save_weights(const std::string& path) const {
  state_->save_weights(path);
}

void Fit::load_weights(const std::string& path) {
  state_->load_weights(path);
}

void Fit::join() {
  state_->join();
}

}  // namespace trireme
