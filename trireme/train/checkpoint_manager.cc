// A save has two parts (checkpoint_save.h). The cut runs on the caller's thread; a thread of the
// manager then writes the files, commits the checkpoint and removes old ones. `busy_` is true from
// the beginning of the one to the end of the other, and during a restore, so that at most one of
// them uses the folder. Waits for it have no deadline of their own: the save and each of its parts
// have.
#include "trireme/train/checkpoint_manager.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/executor.h"
#include "trireme/base/files.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/capture/capture.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/train/checkpoint_objects.h"
#include "trireme/train/checkpoint_restore.h"
#include "trireme/train/checkpoint_save.h"
#include "trireme/train/kept_checkpoints.h"
#include "trireme/train/sigterm.h"

namespace trireme {

using internal::CheckpointDirectory;
using internal::CheckpointEntry;
using internal::CheckpointReader;
using internal::CheckpointSave;
using internal::Manifest;

namespace {

// Time for closures in flight to complete before a restore, and for the servers to confirm it.
constexpr auto kRestoreDrain = std::chrono::seconds(30);

// Servers need a path that does not depend on the working directory of this program.
std::string absolute_path(const std::string& path) {
  std::string absolute = std::filesystem::absolute(path).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

// Splits a path into the folder and the last part.
std::pair<std::string, std::string> split_path(const std::string& path) {
  const std::filesystem::path parts(path);
  return {parts.parent_path().string(), parts.filename().string()};
}

void check_options(const std::string& directory, const CheckpointOptions& options) {
  if (directory.empty() || options.keep < 0 || options.every_steps < 0 ||
      options.every.count() < 0 || options.drain_timeout.count() < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "a CheckpointManager needs a folder, and options that are not negative");
  }
}

void check_not_capturing(const char* call) {
  if (!internal::is_capturing()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat(call, "() was called in a captured function; call it between the steps"),
              {"", absl::StrCat("function '", internal::captured_function(), "'")});
}

}  // namespace

class CheckpointManager::Impl {
 public:
  Impl(const std::string& directory, const std::vector<Checkpointed>& objects,
       CheckpointOptions options, Files& files)
      : files_(files),
        options_((check_options(directory, options), options)),
        objects_(objects),
        directory_(files_, absolute_path(directory)),
        kept_(files_, {.keep = options.keep,
                       .keep_best = options.keep_best,
                       .higher_is_better = options.higher_is_better}) {
    if (options_.save_on_sigterm) sigterm_.emplace();
  }

  ~Impl() {
    wait_until_idle();
    log_pending();
  }

  bool save(int64_t step, std::optional<double> metric) {
    check_not_capturing("save");
    if (step < 0 || (metric && !std::isfinite(*metric))) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("cannot save step ", step,
                               metric ? absl::StrCat(" with the metric ", *metric) : "",
                               ": the step must not be negative, and a metric must be a finite "
                               "number"));
    }
    {
      MutexLock lock(mutex_);
      throw_pending();
      while (busy_) {
        if (options_.when_busy == WhenBusy::kSkip) return false;
        idle_.wait(mutex_);
      }
      throw_pending();  // the error of the save that it has waited for
      busy_ = true;
    }
    auto cut = make_cut(static_cast<uint64_t>(step), metric);
    if (!cut.ok()) {
      end();
      throw to_error(cut.status());
    }
    {
      MutexLock lock(mutex_);
      last_step_ = step;
      last_time_ = Clock::real().now();
    }
    writer_.submit(
        [this, step, save = *std::move(cut)]() mutable { finish(step, std::move(save)); });
    return true;
  }

  bool save_if_due(int64_t step, std::optional<double> metric) {
    if (sigterm_ && sigterm_->received()) return save_on_sigterm(step, metric);
    {
      MutexLock lock(mutex_);
      const bool due =
          (options_.every_steps > 0 && step - last_step_ >= options_.every_steps) ||
          (options_.every.count() > 0 && Clock::real().now() - last_time_ >= options_.every);
      if (!due) return false;
    }
    return save(step, metric);
  }

  bool interrupted() const {
    MutexLock lock(mutex_);
    return interrupted_;
  }

  void wait() {
    wait_until_idle();
    MutexLock lock(mutex_);
    throw_pending();
  }

  SaveStats last_save() const {
    MutexLock lock(mutex_);
    return stats_;
  }

  int64_t restore_or_initialize() {
    check_not_capturing("restore_or_initialize");
    std::vector<std::string> damages;
    const std::vector<std::string> paths = checkpoints();
    for (const std::string& path : paths) {
      const Restored restored = restore_alone(path, {});
      if (!restored.damaged) return value_or_throw(restored.step);
      damages.push_back(describe(restored.step.status()));
      log_warning("checkpoint '", path,
                  "' is damaged, and the one before it is used: ", damages.back());
    }
    if (paths.empty()) return 0;
    throw Error(
        ErrorCode::kDataLoss,
        absl::StrCat("all ", paths.size(),
                     " checkpoints are damaged: ", absl::StrJoin(damages, "; "),
                     ". Restore the files from a backup, or remove the folder to begin anew"),
        {"", absl::StrCat("folder '", directory_.path(), "'")});
  }

  int64_t restore(const std::string& checkpoint, const RestoreOptions& options) {
    check_not_capturing("restore");
    const std::string path = checkpoint.find('/') == std::string::npos
                                 ? join_path(directory_.path(), checkpoint)
                                 : absolute_path(checkpoint);
    return value_or_throw(restore_alone(path, options).step);
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> paths;
    for (const CheckpointEntry& entry : value_or_throw(directory_.list())) {
      paths.push_back(entry.path);
    }
    return paths;
  }

 private:
  void end(const absl::Status& error = absl::OkStatus()) {
    MutexLock lock(mutex_);
    error_.Update(error);
    busy_ = false;
    idle_.notify_all();
  }

  void wait_until_idle() {
    MutexLock lock(mutex_);
    while (busy_) idle_.wait(mutex_);
  }

  void throw_pending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    throw_if_error(std::exchange(error_, absl::OkStatus()));
  }

  void log_pending() {
    MutexLock lock(mutex_);
    if (error_.ok()) return;
    log_error("the last save of a checkpoint failed: ", describe(error_));
    error_ = absl::OkStatus();
  }

  bool save_on_sigterm(int64_t step, std::optional<double> metric) {
    if (interrupted()) return false;
    bool saved = false;
    try {
      while (!saved) {
        wait_until_idle();
        log_pending();  // an earlier error must not keep it from saving
        saved = save(step, metric);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kAlreadyExists) throw;  // this step is saved
    }
    wait();
    MutexLock lock(mutex_);
    interrupted_ = true;
    return saved;
  }

  // Returns an error if another program has taken over the job: it may use the same folder, which
  // must not be touched then. A program that was frozen may not have noticed.
  absl::Status confirm_membership() const {
    const auto& backend = objects_.backend();
    return backend == nullptr ? absl::OkStatus() : backend->confirm_membership();
  }

  absl::StatusOr<std::unique_ptr<CheckpointSave>> make_cut(uint64_t step,
                                                           std::optional<double> metric) {
    TRIREME_RETURN_IF_ERROR(confirm_membership());
    if (kept_.is_damaged(step)) TRIREME_RETURN_IF_ERROR(kept_.remove_damaged(directory_, step));
    TRIREME_ASSIGN_OR_RETURN(const std::string folder, directory_.begin(step));
    TRIREME_RETURN_IF_ERROR(directory_.remove_unfinished(folder));
    auto cut = CheckpointSave::cut(files_, objects_, folder,
                                   {.step = step,
                                    .metric = metric,
                                    .stream = options_.mode == SaveMode::kStream,
                                    .drain_timeout = options_.drain_timeout});
    if (!cut.ok()) remove_leftovers();
    return cut;
  }

  // Writes and commits a save. Runs on `writer_`.
  void finish(int64_t step, std::unique_ptr<CheckpointSave> save) {
    const absl::Status status = try_call([&] { write(step, std::move(save)); });
    if (!status.ok()) remove_leftovers();
    end(status);
  }

  void write(int64_t step, std::unique_ptr<CheckpointSave> save) {
    const Time begin = Clock::real().now();
    const Manifest manifest = value_or_throw(save->write());
    const internal::PsSave::Stats servers = save->server_stats();
    const Duration stall = save->stall();
    save.reset();
    throw_if_error(confirm_membership());
    throw_if_error(directory_.commit(
        join_path(directory_.path(), internal::checkpoint_name(manifest.step)), manifest));
    SaveStats stats{.step = step,
                    .stall = stall,
                    .copy = servers.copy,
                    .pool_wait = servers.pool_wait_total,
                    .longest_pool_wait = servers.pool_wait_longest,
                    .write = Clock::real().now() - begin,
                    .extra_bytes = servers.extra_bytes};
    for (const internal::SavedFile& file : manifest.files) stats.bytes += file.bytes;
    {
      MutexLock lock(mutex_);
      stats_ = stats;
    }
    kept_.add(manifest.step, manifest.metric);
    throw_if_error(kept_.remove_others(directory_, manifest.step));
  }

  // Removes the folder of a save that has failed. An error of that is logged only: the folder is
  // not a checkpoint, and the next save tries again.
  void remove_leftovers() {
    const absl::Status status = directory_.remove_unfinished();
    if (!status.ok()) {
      log_warning("could not remove the files of a save that has failed: ", describe(status));
    }
  }

  // Result of a restore: the step, or an error.
  struct Restored {
    absl::StatusOr<int64_t> step;
    // True if the error is damage of the checkpoint. The code alone does not tell, because a lost
    // parameter server has the same.
    bool damaged = false;
  };

  // Restores while no save is in flight.
  Restored restore_alone(const std::string& path, const RestoreOptions& options) {
    {
      MutexLock lock(mutex_);
      while (busy_) idle_.wait(mutex_);
      busy_ = true;
    }
    Restored restored = restore_now(path, options);
    const auto [folder, name] = split_path(path);
    const auto step = internal::checkpoint_step(name);
    if (restored.damaged && step && folder == directory_.path()) kept_.add_damaged(*step);
    end();
    return restored;
  }

  Restored restore_now(const std::string& path, const RestoreOptions& options) {
    const auto failed_reading = [](const absl::Status& status) {
      return Restored{status, error_code(status) == ErrorCode::kDataLoss};
    };
    const auto reader = CheckpointReader::open(files_, path);
    if (!reader.ok()) return failed_reading(reader.status());
    std::unique_ptr<internal::BackendPause> pause;
    std::optional<internal::CheckpointRestore> restore;
    const absl::Status prepared = try_call([&] {
      if (const auto& backend = objects_.backend()) {
        objects_.ps_variables();  // creates them, which needs no pause
        const Time limit = after(kRestoreDrain);
        pause = value_or_throw(backend->pause(limit, limit + kRestoreDrain));
      }
      restore.emplace(objects_, **reader, options);
    });
    if (!prepared.ok()) return {prepared};
    const absl::Status done = try_call([&] { restore->run(); });
    if (!done.ok()) return failed_reading(done);
    const auto step = static_cast<int64_t>((*reader)->manifest().step);
    MutexLock lock(mutex_);
    last_step_ = step;
    last_time_ = Clock::real().now();
    return {step};
  }

  Files& files_;
  const CheckpointOptions options_;
  const internal::CheckpointObjects objects_;
  std::optional<internal::SigtermWatch> sigterm_;

  // Used by the thread that has set busy_, and by `writer_` in its place.
  CheckpointDirectory directory_;
  internal::KeptCheckpoints kept_;

  mutable Mutex mutex_;
  CondVar idle_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // True while a save or a restore is in flight.
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // Error of the last save that was not thrown yet.
  SaveStats stats_ ABSL_GUARDED_BY(mutex_);
  int64_t last_step_ ABSL_GUARDED_BY(mutex_) = 0;  // Step of the last save or restore.
  Time last_time_ ABSL_GUARDED_BY(mutex_) = Clock::real().now();

  ThreadPool writer_{"trireme-save", 1};  // Last, so that it ends first.
};

CheckpointManager::CheckpointManager(std::string directory,
                                     const std::vector<Checkpointed>& objects,
                                     CheckpointOptions options)
    : CheckpointManager(std::move(directory), objects, options, Files::local()) {}

CheckpointManager::CheckpointManager(std::string directory,
                                     const std::vector<Checkpointed>& objects,
                                     CheckpointOptions options, Files& files)
    : impl_(std::make_unique<Impl>(directory, objects, options, files)) {}

CheckpointManager::~CheckpointManager() = default;

bool CheckpointManager::save(int64_t step, std::optional<double> metric) {
  return impl_->save(step, metric);
}

bool CheckpointManager::save_if_due(int64_t step, std::optional<double> metric) {
  return impl_->save_if_due(step, metric);
}

bool CheckpointManager::interrupted() const {
  return impl_->interrupted();
}

void CheckpointManager::wait() {
  impl_->wait();
}

SaveStats CheckpointManager::last_save() const {
  return impl_->last_save();
}

int64_t CheckpointManager::restore_or_initialize() {
  return impl_->restore_or_initialize();
}

int64_t CheckpointManager::restore(const std::string& checkpoint, const RestoreOptions& options) {
  return impl_->restore(checkpoint, options);
}

std::optional<std::string> CheckpointManager::latest() const {
  const std::vector<std::string> paths = checkpoints();
  return paths.empty() ? std::nullopt : std::optional(paths.front());
}

std::vector<std::string> CheckpointManager::checkpoints() const {
  return impl_->checkpoints();
}

}  // namespace trireme
