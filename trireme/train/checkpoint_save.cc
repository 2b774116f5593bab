// The cut. Training is held only while the contents are fixed; the folder exists before. While it
// is held, no update is under way, so variables, optimizers' state, positions of iterators and
// counts belong together.
#include "trireme/train/checkpoint_save.h"

#include <ctime>
#include <map>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/manifest_check.h"
#include "trireme/exec/random.h"
#include "trireme/function/function_count.h"
#include "trireme/ps/checkpoint_folder.h"

namespace trireme::internal {
namespace {

// Time for what follows the drain: closures that have begun to push complete, and the servers
// confirm that no late update is applied.
constexpr auto kFenceTime = std::chrono::seconds(30);
// Time for the servers to fix the contents.
constexpr auto kBeginTime = std::chrono::minutes(2);

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[sizeof "2000-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointSave>> CheckpointSave::cut(
    Files& files, const CheckpointObjects& objects, const std::string& folder,
    const CheckpointSaveOptions& options) {
  std::unique_ptr<CheckpointSave> save(new CheckpointSave(files, objects, folder));
  TRIREME_RETURN_IF_ERROR(save->make_cut(options));
  return save;
}

absl::Status CheckpointSave::make_cut(const CheckpointSaveOptions& options) {
  manifest_.step = options.step;
  manifest_.metric = options.metric;
  manifest_.id = format_incarnation(new_incarnation());
  manifest_.saved_at = utc_now();
  PsSaveOptions server_options{.directory = folder_, .id = manifest_.id, .stream = options.stream};
  std::vector<PsVariable> there;
  const auto& backend = objects_.backend();
  if (backend != nullptr) {
    TRIREME_RETURN_IF_ERROR(try_call([&] { there = objects_.ps_variables(); }));
    TRIREME_ASSIGN_OR_RETURN(server_options.probe, write_probe(files_, folder_));
  }

  const Time begin = Clock::real().now();
  std::unique_ptr<BackendPause> pause;
  if (backend != nullptr) {
    const Time drain_until = begin + options.drain_timeout;
    TRIREME_ASSIGN_OR_RETURN(pause, backend->pause(drain_until, drain_until + kFenceTime));
    for (const PausedWriter& fence : pause->fences()) {
      manifest_.fences.push_back({fence.writer, fence.below});
    }
  }
  const absl::Status copied = try_call([&] {
    for (const CheckpointedIterator& iterator : objects_.iterators()) {
      const size_t i = manifest_.iterators.size();
      const bool is_known = !options.positions.empty();
      manifest_.iterators.push_back(
          {.name = iterator.name,
           .per_worker = is_known || iterator.per_worker(),
           .dataset = iterator.dataset(),
           .positions = is_known ? options.positions[i] : iterator.positions()});
    }
    for (const auto& optimizer : objects_.optimizers()) rates_[optimizer.get()] = optimizer->lr();
    manifest_.functions = function_counts();
    manifest_.seed = current_seed();
    for (const CheckpointedText& text : objects_.texts()) manifest_.texts[text.name] = text.save();
    throw_if_error(check_texts(manifest_.texts));
    program_ = std::make_unique<ProgramCopy>(objects_);
  });
  TRIREME_RETURN_IF_ERROR(copied);
  if (backend != nullptr) {
    TRIREME_ASSIGN_OR_RETURN(
        servers_, PsSave::begin(backend->client(), there, server_options, after(kBeginTime)));
  }
  pause.reset();
  stall_ = Clock::real().now() - begin;
  return absl::OkStatus();
}

absl::StatusOr<Manifest> CheckpointSave::write() {
  if (servers_ != nullptr) {
    TRIREME_ASSIGN_OR_RETURN(PsSaved saved, servers_->wait());
    TRIREME_RETURN_IF_ERROR(files_.remove(join_path(folder_, kProbeName)));
    manifest_.files = std::move(saved.files);
    manifest_.variables = std::move(saved.variables);
  }
  TRIREME_RETURN_IF_ERROR(program_->write(files_, folder_, manifest_));
  program_.reset();
  std::map<std::string, const CheckpointedVariable*> given;
  for (const auto& variable : objects_.variables()) given[variable.variable.name()] = &variable;
  for (SavedVariable& variable : manifest_.variables) {
    const auto found = given.find(variable.name);
    if (found == given.end()) continue;
    variable.trainable = found->second->variable.trainable();
    if (const Optimizer* optimizer = found->second->optimizer) {
      variable.options["lr"] = rates_.at(optimizer);
    }
  }
  return std::move(manifest_);
}

}  // namespace trireme::internal
