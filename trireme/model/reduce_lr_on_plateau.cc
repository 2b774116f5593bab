#include "trireme/model/reduce_lr_on_plateau.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/model/json_number.h"

namespace trireme {

ReduceLrOnPlateau::ReduceLrOnPlateau(ReduceLrOnPlateauOptions options)
    : options_(std::move(options)),
      monitor_("ReduceLrOnPlateau", options_.monitor, options_.mode, options_.min_delta) {
  if (!(options_.factor > 0 && options_.factor < 1)) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the option factor of ReduceLrOnPlateau is ", options_.factor,
                             "; it must be between 0 and 1, so that the rate gets smaller"));
  }
  if (options_.patience < 0 || options_.cooldown < 0 || !(options_.min_lr >= 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the options patience, cooldown and min_lr of ReduceLrOnPlateau must be 0 or more");
  }
}

void ReduceLrOnPlateau::on_train_begin(Fit&) {
  state_ = {};
}

void ReduceLrOnPlateau::on_epoch_end(Fit& fit, Logs& logs) {
  const double lr = fit.lr();
  logs.set("learning_rate", lr);
  const std::optional<double> value = monitor_.read(logs, fit.epoch());
  if (!value) return;
  if (state_.cooldown > 0) {
    --state_.cooldown;
    state_.wait = 0;
  }
  if (monitor_.improves(*value, state_.best)) {
    state_.best = value;
    state_.wait = 0;
    return;
  }
  if (state_.cooldown > 0 || ++state_.wait < options_.patience || lr <= options_.min_lr) return;
  fit.set_lr(std::max(lr * options_.factor, options_.min_lr));
  state_.cooldown = options_.cooldown;
  state_.wait = 0;
}

std::string ReduceLrOnPlateau::save() const {
  nlohmann::json json{{"best", nullptr}, {"wait", state_.wait}, {"cooldown", state_.cooldown}};
  if (state_.best) json["best"] = internal::json_number(*state_.best);
  return json.dump();
}

void ReduceLrOnPlateau::restore(const std::string& state) {
  try {
    const nlohmann::json json = nlohmann::json::parse(state);
    State restored;
    if (!json.at("best").is_null()) restored.best = internal::read_json_number(json.at("best"));
    restored.wait = json.at("wait");
    restored.cooldown = json.at("cooldown");
    state_ = restored;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the saved state of ReduceLrOnPlateau is malformed: ", error.what()));
  }
}

}  // namespace trireme
