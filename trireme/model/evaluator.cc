// The evaluator and the training share only the folder. A checkpoint is there when its manifest is,
// and the file `ended` comes after the last checkpoint. So the evaluator looks for this file first
// and then for checkpoints, and may end if it has found the file and no checkpoint that is new. The
// training removes old checkpoints at any time, also while they are read here.
#include "trireme/model/evaluator.h"

#include <ATen/core/grad_mode.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/model/backup_and_restore.h"
#include "trireme/observe/event_file.h"

namespace trireme::internal {
namespace {

constexpr char kEvaluatorRun[] = "evaluator";

// Sets the variables to the values of a checkpoint. Changes nothing if it fails.
void load_variables(const std::vector<Variable>& variables, const CheckpointReader& reader) {
  std::map<std::string, const SavedVariable*> saved;
  for (const SavedVariable& variable : reader.manifest().variables) {
    saved[variable.name] = &variable;
  }
  std::vector<std::string> differences;
  std::vector<at::Tensor> values;
  for (const Variable& variable : variables) {
    const auto found = saved.find(variable.name());
    const at::Tensor present = variable.read();
    if (found == saved.end() || found->second->dtype != present.scalar_type() ||
        at::IntArrayRef(found->second->sizes) != present.sizes()) {
      differences.push_back(absl::StrCat("'", variable.name(), "'"));
    } else if (differences.empty()) {
      values.push_back(value_or_throw(reader.read(*found->second)));
    }
  }
  if (!differences.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the model of the evaluator has variables that the checkpoint does "
                             "not have, or has with another shape or dtype: ",
                             absl::StrJoin(differences, ", "),
                             "; make the same model as the program that trains"),
                {"", absl::StrCat("checkpoint '", reader.path(), "'")});
  }
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < variables.size(); ++i) variables[i].assign(values[i]);
}

// Returns the first checkpoint after a step, or the first of all if there are only earlier ones:
// then the training has begun anew. `entries` are sorted, the newest first.
std::optional<CheckpointEntry> first_after(std::optional<uint64_t> step,
                                           const std::vector<CheckpointEntry>& entries) {
  if (entries.empty() || entries.front().step == step) return std::nullopt;
  if (!step || entries.front().step < *step) return entries.back();
  std::optional<CheckpointEntry> first;
  for (const CheckpointEntry& entry : entries) {
    if (entry.step > *step) first = entry;
  }
  return first;
}

// Returns the number of complete epochs from the state of a fit(); 0 if there is none.
int64_t epoch_of(const Manifest& manifest) {
  const auto text = manifest.texts.find("fit");
  if (text == manifest.texts.end()) return 0;
  const auto state = nlohmann::json::parse(text->second, nullptr, /*allow_exceptions=*/false);
  return state.is_object() ? state.value("epoch", int64_t{0}) : 0;
}

std::string text_of(const Logs& logs) {
  return absl::StrJoin(logs.entries(), " - ", [](std::string* out, const auto& figure) {
    absl::StrAppend(out, figure.first, ": ", figure.second);
  });
}

// Writes figures to event files of TensorBoard.
class EvaluatorLog {
 public:
  explicit EvaluatorLog(const std::string& folder) {
    if (folder.empty()) return;
    file_ = value_or_throw(
        EventFile::create(join_path(folder, kEvaluatorRun), {.writer = "trireme evaluator"}));
  }

  void add(const EvaluatedCheckpoint& result) {
    if (file_ == nullptr) return;
    for (const auto& [name, value] : result.logs.entries()) {
      file_->add_scalar(absl::StrCat("evaluation_", name, "_vs_iterations"), result.step, value);
      if (result.epoch == 0) continue;  // inside of the first epoch
      file_->add_scalar(absl::StrCat("epoch_", name), result.epoch - 1, value);
    }
    throw_if_error(file_->flush());
  }

 private:
  std::unique_ptr<EventFile> file_;  // Null for none.
};

}  // namespace

std::vector<EvaluatedCheckpoint> evaluate_checkpoints(ModelBase& model,
                                                      const std::vector<Variable>& variables,
                                                      const std::string& folder,
                                                      const DataSource& data,
                                                      const EvaluateCheckpointsOptions& options) {
  Files& files = Files::local();
  const CheckpointDirectory directory(files, folder);
  EvaluatorLog log(options.tensorboard);
  std::vector<EvaluatedCheckpoint> results;
  std::optional<uint64_t> seen;  // Step of the last checkpoint that was looked at.
  Time deadline = after(options.timeout);
  for (;;) {
    const bool ended = value_or_throw(files.exists(join_path(folder, kEndedName)));
    if (const auto next = first_after(seen, value_or_throw(directory.list()))) {
      seen = next->step;
      if (next->step == 0) continue;  // nothing was trained
      deadline = after(options.timeout);
      EvaluatedCheckpoint result{.path = next->path, .step = static_cast<int64_t>(next->step)};
      try {
        const auto reader = value_or_throw(CheckpointReader::open(files, result.path));
        load_variables(variables, *reader);
        result.epoch = epoch_of(reader->manifest());
      } catch (const Error& error) {
        const std::string manifest = join_path(result.path, kManifestName);
        if (value_or_throw(files.exists(manifest))) throw;
        log_info("the training has removed '", result.path, "', which is not evaluated");
        continue;
      }
      result.logs = model.evaluate(data, options.evaluate);
      log_info("evaluated '", result.path, "', ", result.epoch, " epochs, ", result.step,
               " steps: ", text_of(result.logs));
      log.add(result);
      if (options.on_result) options.on_result(result);
      results.push_back(std::move(result));
      deadline = after(options.timeout);
      continue;
    }
    if (ended) return results;
    if (Clock::real().now() > deadline) {
      throw Error(ErrorCode::kDeadlineExceeded,
                  absl::StrCat("the evaluator has found no new checkpoint within ",
                               format_duration(options.timeout),
                               ", and the training has not ended; see if it still runs, or set a "
                               "longer timeout"),
                  {"", absl::StrCat("folder '", folder, "'")});
    }
    std::this_thread::sleep_for(options.poll);
  }
}

}  // namespace trireme::internal
