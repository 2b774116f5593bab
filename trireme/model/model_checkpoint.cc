#include "trireme/model/model_checkpoint.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/model/checkpoint_path.h"

namespace trireme {

ModelCheckpoint::ModelCheckpoint(std::string path, ModelCheckpointOptions options)
    : path_(std::move(path)), options_(std::move(options)) {
  if (path_.empty() || options_.save_freq < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "ModelCheckpoint needs a path, and a save_freq of 1 or more epochs");
  }
  if (!options_.save_best_only) return;
  monitor_.emplace("ModelCheckpoint", options_.monitor, options_.mode, /*min_delta=*/0);
  best_ = options_.initial_value_threshold;
}

void ModelCheckpoint::on_epoch_end(Fit& fit, Logs& logs) {
  const int64_t epoch = fit.epoch() + 1;
  if (epoch % options_.save_freq != 0) return;
  if (options_.save_best_only && !is_best(logs, fit.epoch())) return;
  const std::string path = internal::format_checkpoint_path(path_, epoch, logs);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty() && fit.is_chief()) throw_if_error(Files::local().make_directories(folder));
  fit.save_weights(path);
}

bool ModelCheckpoint::is_best(const Logs& logs, int64_t epoch) {
  const std::optional<double> figure = monitor_->read(logs, epoch);
  if (!figure || !monitor_->improves(*figure, best_)) return false;
  best_ = figure;
  return true;
}

std::string ModelCheckpoint::save() const {
  return best_ ? absl::StrFormat("%.17g", *best_) : "";
}

void ModelCheckpoint::restore(const std::string& state) {
  best_.reset();
  if (state.empty()) return;
  char* end = nullptr;
  const double best = std::strtod(state.c_str(), &end);
  if (*end != '\0') {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("'", state, "' is not a valid state of a ModelCheckpoint"));
  }
  best_ = best;
}

}  // namespace trireme
