#include "trireme/model/early_stopping.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/model/json_number.h"
#include "trireme/tensor/dtype.h"

namespace trireme {
namespace {

// All texts of a checkpoint have at most 16 MiB, and Base64 adds a third.
constexpr size_t kMostSavedWeights = size_t{8} << 20;

nlohmann::json weights_to_json(const std::vector<at::Tensor>& weights) {
  size_t bytes = 0;
  for (const at::Tensor& tensor : weights) bytes += tensor.nbytes();
  nlohmann::json all = nlohmann::json::array();
  if (bytes > kMostSavedWeights) return all;
  for (const at::Tensor& tensor : weights) {
    const absl::string_view data(static_cast<const char*>(tensor.const_data_ptr()),
                                 tensor.nbytes());
    all.push_back({{"dtype", value_or_throw(dtype_to_wire(tensor.scalar_type()))},
                   {"shape", tensor.sizes().vec()},
                   {"data", absl::Base64Escape(data)}});
  }
  return all;
}

std::vector<at::Tensor> weights_from_json(const nlohmann::json& all) {
  std::vector<at::Tensor> weights;
  for (const nlohmann::json& saved : all) {
    at::Tensor tensor = at::empty(saved.at("shape").get<std::vector<int64_t>>(),
                                  value_or_throw(dtype_from_wire(saved.at("dtype"))));
    std::string data;
    if (!absl::Base64Unescape(saved.at("data").get<std::string>(), &data) ||
        data.size() != tensor.nbytes()) {
      throw Error(ErrorCode::kInvalidArgument, "the saved weights of EarlyStopping are damaged");
    }
    std::memcpy(tensor.mutable_data_ptr(), data.data(), data.size());
    weights.push_back(std::move(tensor));
  }
  return weights;
}

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      monitor_("EarlyStopping", options_.monitor, options_.mode, options_.min_delta) {
  if (options_.patience >= 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("the option patience of EarlyStopping is ", options_.patience,
                           "; it must be 0 or more epochs"));
}

void EarlyStopping::on_train_begin(Fit&) {
  state_ = {};
}

void EarlyStopping::keep_weights(const Fit& fit) {
  if (!options_.restore_best_weights) return;
  const at::NoGradGuard no_gradients;
  state_.weights.clear();
  for (const Variable& variable : fit.variables()) {
    const at::Tensor value = variable.read().detach();
    // A copy, since the variable's own tensor changes with the next step.
    state_.weights.push_back(value.to(at::kCPU).clone(at::MemoryFormat::Contiguous));
  }
}

void EarlyStopping::on_epoch_end(Fit& fit, Logs& logs) {
  const std::optional<double> value = monitor_.read(logs, fit.epoch());
  if (!value || fit.epoch() < options_.start_from_epoch) return;
  ++state_.wait;
  if (monitor_.improves(*value, state_.best)) {
    state_.best = value;
    state_.best_epoch = fit.epoch();
    keep_weights(fit);
    if (!options_.baseline || monitor_.improves(*value, options_.baseline)) state_.wait = 0;
    return;
  }
  // The weights of a first epoch whose figure is NaN are better than none.
  if (state_.weights.empty()) keep_weights(fit);
  if (state_.wait < options_.patience || fit.epoch() == 0) return;
  state_.stopped_epoch = fit.epoch();
  fit.stop();
}

void EarlyStopping::on_train_end(Fit& fit, const Logs&) {
  if (state_.weights.empty()) return;
  const std::vector<Variable> variables = fit.variables();
  if (variables.size() != state_.weights.size()) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("EarlyStopping has kept the weights of ", state_.weights.size(),
                             " variables, but the model has ", variables.size(),
                             "; continue a checkpoint with the model that it was made of"));
  }
  for (size_t i = 0; i < variables.size(); ++i) variables[i].assign(state_.weights[i]);
}

std::string EarlyStopping::save() const {
  nlohmann::json json{{"best", nullptr},
                      {"best_epoch", state_.best_epoch},
                      {"wait", state_.wait},
                      {"stopped_epoch", nullptr},
                      {"weights", weights_to_json(state_.weights)}};
  if (state_.best) json["best"] = internal::json_number(*state_.best);
  if (state_.stopped_epoch) json["stopped_epoch"] = *state_.stopped_epoch;
  return json.dump();
}

void EarlyStopping::restore(const std::string& state) {
  try {
    const nlohmann::json json = nlohmann::json::parse(state);
    State restored;
    if (!json.at("best").is_null()) restored.best = internal::read_json_number(json.at("best"));
    restored.best_epoch = json.at("best_epoch");
    restored.wait = json.at("wait");
    if (!json.at("stopped_epoch").is_null()) restored.stopped_epoch = json.at("stopped_epoch");
    restored.weights = weights_from_json(json.at("weights"));
    state_ = std::move(restored);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the saved state of EarlyStopping is malformed: ", error.what()));
  }
  if (options_.restore_best_weights && state_.best && state_.weights.empty()) {
    log_warning("the checkpoint does not have the best weights of EarlyStopping, those of epoch ",
                state_.best_epoch,
                ", since they have more than 8 MiB. Unless a later epoch is better, other weights "
                "will be restored; write the best ones to a file with ModelCheckpoint");
  }
}

}  // namespace trireme
