// A save has two parts (checkpoint_save.h). The cut runs on the caller's thread; a thread of the
// manager then writes the files, commits the checkpoint and removes old ones. `busy_` is true from
// the beginning of the one to the end of the other, and during a restore, so that at most one of
// them uses the folder. Waits for it have no deadline of their own: the save and each of its parts
// have.
//
// If workers train together, worker 0 does all of this. The others take part in the agreements
// (worker_agreement.h), so that all workers return at the same moment, with the same result or the
// same error. Each of them restores its own copy of the variables.
#include "trireme/train/checkpoint_manager.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
#include "trireme/train/lost_server.h"
#include "trireme/train/restore_result.h"
#include "trireme/train/sigterm.h"
#include "trireme/train/worker_agreement.h"
#include "trireme/train/worker_positions.h"

namespace trireme {

using internal::CheckpointDirectory;
using internal::CheckpointEntry;
using internal::CheckpointReader;
using internal::CheckpointSave;
using internal::Damage;
using internal::Manifest;
using internal::RestoreResult;

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
        agreement_(objects_.workers()),
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
    const Positions positions = internal::positions_of_workers(agreement_, objects_);
    constexpr char kSaved[] = "saved";
    const auto save_as_chief = [&]() -> std::string {
      return save_here(step, metric, positions) ? kSaved : "skipped";
    };
    return agreement_.decide(save_as_chief, "save of a checkpoint") == kSaved;
  }

  bool save_if_due(int64_t step, std::optional<double> metric) {
    const std::vector<bool> agreed = agreement_.any(
        {sigterm_ && sigterm_->received(), agreement_.is_chief() && is_due(step)}, "due save");
    if (agreed[0]) return save_on_sigterm(step, metric);
    return agreed[1] && save(step, metric);
  }

  bool interrupted() const {
    MutexLock lock(mutex_);
    return interrupted_;
  }

  void wait() {
    const auto wait_as_chief = [&]() -> std::string {
      wait_until_idle();
      MutexLock lock(mutex_);
      throw_pending();
      return "";
    };
    agreement_.decide(wait_as_chief, "wait for a checkpoint");
  }

  SaveStats last_save() const {
    MutexLock lock(mutex_);
    return stats_;
  }

  int64_t restore_or_initialize() {
    check_not_capturing("restore_or_initialize");
    std::vector<std::string> damages;
    bool unreadable = false;
    const auto list_as_chief = [&] { return absl::StrJoin(checkpoints(), "\n"); };
    const std::vector<std::string> paths = absl::StrSplit(
        agreement_.decide(list_as_chief, "list of checkpoints"), '\n', absl::SkipEmpty());
    for (const std::string& path : paths) {
      const RestoreResult restored = restore_alone(path, {}, /*may_skip=*/true);
      if (restored.damage == Damage::kNone) return step_or_throw(restored);
      unreadable = unreadable || restored.damage == Damage::kUnreadable;
      damages.push_back(describe(restored.step.status()));
      log_warning("checkpoint '", path, "' ",
                  restored.damage == Damage::kUnreadable ? "cannot be read" : "is damaged",
                  ", and the one before it is used: ", damages.back());
    }
    if (paths.empty()) return 0;
    throw internal::unusable_folder(directory_.path(), damages, unreadable);
  }

  int64_t restore(const std::string& checkpoint, const RestoreOptions& options) {
    check_not_capturing("restore");
    const std::string path = checkpoint.find('/') == std::string::npos
                                 ? join_path(directory_.path(), checkpoint)
                                 : absolute_path(checkpoint);
    const std::string agreed = agreement_.decide([&] { return path; }, "path of a checkpoint");
    return step_or_throw(restore_alone(agreed, options, /*may_skip=*/false));
  }

  std::vector<std::string> checkpoints() const {
    std::vector<std::string> paths;
    for (const CheckpointEntry& entry : value_or_throw(directory_.list())) {
      paths.push_back(entry.path);
    }
    return paths;
  }

 private:
  using Positions = std::vector<std::vector<internal::SavedPosition>>;

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
    internal::throw_lost_or_error(std::exchange(error_, absl::OkStatus()));
  }

  void log_pending() {
    MutexLock lock(mutex_);
    if (error_.ok()) return;
    log_error("the last save of a checkpoint failed: ", describe(error_));
    error_ = absl::OkStatus();
  }

  // Saves, on worker 0.
  bool save_here(int64_t step, std::optional<double> metric, const Positions& positions) {
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
    auto cut = make_cut(static_cast<uint64_t>(step), metric, positions);
    if (!cut.ok()) {
      const absl::Status error = abandon(step, cut.status());
      end();
      internal::throw_lost_or_error(error);
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

  bool is_due(int64_t step) const {
    MutexLock lock(mutex_);
    return (options_.every_steps > 0 && step - last_step_ >= options_.every_steps) ||
           (options_.every.count() > 0 && Clock::real().now() - last_time_ >= options_.every);
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
                                                           std::optional<double> metric,
                                                           const Positions& positions) {
    TRIREME_RETURN_IF_ERROR(confirm_membership());
    TRIREME_RETURN_IF_ERROR(kept_.make_room(directory_, step));
    TRIREME_ASSIGN_OR_RETURN(const std::string folder, directory_.begin(step));
    TRIREME_RETURN_IF_ERROR(directory_.remove_unfinished(folder));
    return CheckpointSave::cut(files_, objects_, folder,
                               {.step = step,
                                .metric = metric,
                                .stream = options_.mode == SaveMode::kStream,
                                .drain_timeout = options_.drain_timeout,
                                .positions = positions});
  }

  // Writes and commits a save. Runs on `writer_`.
  void finish(int64_t step, std::unique_ptr<CheckpointSave> save) {
    absl::Status status = try_call([&] { write(step, std::move(save)); });
    if (!status.ok()) status = abandon(step, status);
    end(status);
  }

  void write(int64_t step, std::unique_ptr<CheckpointSave> save) {
    const Time begin = Clock::real().now();
    const Manifest manifest = value_or_throw(save->write());
    const internal::PsSave::Stats servers = save->server_stats();
    const Duration stall = save->stall();
    save.reset();
    throw_if_error(confirm_membership());
    throw_if_error(directory_.commit(folder_of(step), manifest));
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

  std::string folder_of(int64_t step) const {
    return join_path(directory_.path(), internal::checkpoint_name(static_cast<uint64_t>(step)));
  }

  // Ends a save that has failed, and returns its error. Removes its folder, unless a newer program
  // may use it. An error of that is logged only: the folder is not a checkpoint, and the next save
  // tries again.
  absl::Status abandon(int64_t step, const absl::Status& error) {
    absl::Status found = internal::find_lost_server(objects_.backend(), error);
    if (internal::is_lost_server(found) || !confirm_membership().ok()) return found;
    const absl::Status status = directory_.remove_if_unfinished(folder_of(step));
    if (!status.ok()) {
      log_warning("could not remove the files of a save that has failed: ", describe(status));
    }
    return found;
  }

  static int64_t step_or_throw(const RestoreResult& restored) {
    // Servers report damaged files with the code of a lost server.
    if (restored.damage == Damage::kNone) internal::throw_lost_or_error(restored.step.status());
    return value_or_throw(restored.step);
  }

  // Restores while no save is in flight. With `may_skip`, the program goes back behind a checkpoint
  // that cannot be read.
  RestoreResult restore_alone(const std::string& path, const RestoreOptions& options,
                              bool may_skip) {
    {
      MutexLock lock(mutex_);
      while (busy_) idle_.wait(mutex_);
      busy_ = true;
    }
    const absl::Cleanup idle = [this] { end(); };
    RestoreResult restored = restore_now(path, options);
    const auto [folder, name] = split_path(path);
    const auto step = internal::checkpoint_step(name);
    if (step && folder == directory_.path()) {
      if (restored.step.ok()) kept_.add_readable(*step);
      if (restored.damage == Damage::kDamaged) kept_.add_damaged(*step);
      if (restored.damage == Damage::kUnreadable && may_skip) kept_.add_unreadable(*step);
    }
    return restored;
  }

  // Returns the damage that the error of reading a checkpoint tells of.
  Damage damage_of(const absl::Status& error) const {
    const bool of_server = !error_origin(error).task.empty();
    switch (error_code(error)) {
      case ErrorCode::kDataLoss:
        return Damage::kDamaged;
      case ErrorCode::kUnavailable:  // A server has another code for its disk.
        return of_server ? Damage::kNone : Damage::kUnreadable;
      case ErrorCode::kAborted:  // So a server reports its disk, and that the job was taken over.
        return of_server && confirm_membership().ok() ? Damage::kUnreadable : Damage::kNone;
      default:
        return Damage::kNone;
    }
  }

  RestoreResult restore_now(const std::string& path, const RestoreOptions& options) {
    const auto failed = [&](const absl::Status& status, Damage damage) {
      if (damage != Damage::kNone) return RestoreResult{status, damage};
      return RestoreResult{internal::find_lost_server(objects_.backend(), status)};
    };
    const std::vector<std::string> names = internal::names_of_chief(agreement_, objects_);
    const auto reader = CheckpointReader::open(files_, path);
    std::unique_ptr<internal::BackendPause> pause;
    std::optional<internal::CheckpointRestore> restore;
    const auto prepare = [&]() -> RestoreResult {
      if (!reader.ok()) return failed(reader.status(), damage_of(reader.status()));
      const absl::Status prepared = try_call([&] {
        if (const auto& backend = objects_.backend()) {
          objects_.ps_variables();  // creates them, which needs no pause
          const Time limit = after(kRestoreDrain);
          pause = value_or_throw(backend->pause(limit, limit + kRestoreDrain));
        }
        restore.emplace(objects_, **reader, options, names);
      });
      if (!prepared.ok()) return failed(prepared, Damage::kNone);
      return {static_cast<int64_t>((*reader)->manifest().step)};
    };
    const auto agree = [&](const RestoreResult& mine) {
      return agree_on_restore(agreement_, mine, mine.step.ok() ? (*reader)->manifest().id : "",
                              path);
    };
    const RestoreResult prepared = agree(prepare());
    if (!prepared.step.ok()) return prepared;
    const auto agree_on = [&](const absl::Status& done) {
      return agree(done.ok() ? prepared : failed(done, damage_of(done)));
    };
    // No worker changes a variable before all of them have read the values.
    const RestoreResult read = agree_on(try_call([&] { restore->read(); }));
    if (!read.step.ok()) return read;
    const RestoreResult restored = agree_on(try_call([&] { restore->assign(); }));
    if (!restored.step.ok()) return restored;
    MutexLock lock(mutex_);
    last_step_ = *restored.step;
    last_time_ = Clock::real().now();
    return restored;
  }

  Files& files_;
  const CheckpointOptions options_;
  const internal::CheckpointObjects objects_;
  const internal::WorkerAgreement agreement_;
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
