#include "trireme/model/fit_state.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/train/state_dict.h"

namespace trireme::internal {

FitState::FitState(FitParts parts, FitPlace place, FigureSums sums)
    : parts_(std::move(parts)), place_(place), sums_(std::move(sums)), agreement_(parts_.workers) {}

double FitState::lr() const {
  return parts_.optimizer ? parts_.optimizer->lr() : std::numeric_limits<double>::quiet_NaN();
}

void FitState::set_lr(double lr) {
  if (!parts_.optimizer) {
    throw Error(ErrorCode::kFailedPrecondition,
                "fit() cannot set the learning rate: the model has a train_step of its own, whose "
                "optimizer it does not know; give compile() that optimizer as well");
  }
  parts_.optimizer->set_lr(lr);
  follows_schedule_ = false;
}

void FitState::save_weights(const std::string& path) const {
  save_state_dict(*parts_.module, path);
}

void FitState::load_weights(const std::string& path) {
  load_state_dict(*parts_.module, path);
}

bool FitState::agree(bool cut) {
  bool interrupted = interrupted_;
  for (const SavePoint& point : save_points_) {
    if (point.interrupted != nullptr && point.interrupted()) interrupted = true;
  }
  const std::vector<bool> agreed =
      agreement_.any({stopped_, cut, interrupted}, "end of the training");
  stopped_ = agreed[0];
  interrupted_ = agreed[2];
  return agreed[1];
}

std::vector<Checkpointed> FitState::checkpointed() {
  std::vector<Checkpointed> objects{parts_.variables};
  if (parts_.optimizer) objects.emplace_back(*parts_.optimizer);
  objects.push_back(parts_.data->position());
  objects.emplace_back(CheckpointedText{"fit", [this] { return save(); },
                                        [this](const std::string& text) { restore(text); }});
  return objects;
}

std::string FitState::save() const {
  nlohmann::json callbacks = nlohmann::json::array();
  for (const AnyCallback& callback : parts_.callbacks) callbacks.push_back(callback->save());
  nlohmann::json state{{"epoch", place_.epoch},
                       {"step", place_.step},
                       {"step_of_epoch", place_.step_of_epoch},
                       {"steps_per_epoch", place_.steps_per_epoch},
                       {"data_used", place_.data_used},
                       {"sums", sums_.save()},
                       {"history", history_.to_json()},
                       {"follows_schedule", follows_schedule_},
                       {"stopped", stopped_},
                       {"callbacks", std::move(callbacks)}};
  if (parts_.optimizer) state["lr"] = parts_.optimizer->lr();
  return state.dump();
}

void FitState::restore(const std::string& text) {
  try {
    const nlohmann::json state = nlohmann::json::parse(text);
    std::vector<std::string> callbacks = state.at("callbacks");
    if (callbacks.size() != parts_.callbacks.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("the saved state is of a fit() with ", callbacks.size(),
                               " callbacks, but this one has ", parts_.callbacks.size(),
                               "; give fit() the same callbacks in the same order"));
    }
    FitPlace place = place_;
    place.epoch = state.at("epoch");
    place.step = state.at("step");
    place.step_of_epoch = state.at("step_of_epoch");
    place.steps_per_epoch = state.at("steps_per_epoch");
    place.data_used = state.at("data_used");
    const bool follows_schedule = state.at("follows_schedule");
    const bool stopped = state.at("stopped");
    history_ = History::from_json(state.at("history"));
    sums_.restore(state.at("sums"));
    if (parts_.optimizer) parts_.optimizer->set_lr(state.at("lr"));
    place_ = place;
    follows_schedule_ = follows_schedule;
    stopped_ = stopped;
    callback_states_ = std::move(callbacks);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the saved state of fit() is malformed: ", error.what()));
  }
}

}  // namespace trireme::internal
