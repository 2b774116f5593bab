// The checkpoints of a fit() are made at its save points (fit_state.h), at which no step is under
// way and all callbacks have seen the steps so far. A checkpoint of a moment inside of an epoch has
// the sums of the epoch so far.
//
// If the only worker of a cluster is lost, its steps run again, but those whose updates the servers
// have already applied find newer variables. The weights and figures would no longer be those of an
// undisturbed run, so the fit goes back to its newest checkpoint. There is one from the beginning.
//
// Checkpoints are named by the number of steps, so there is at most one of each. A save inside of
// an epoch after its last step is therefore put off to the end of the epoch, if its length is
// known. If it is not, the save at the end of the epoch is left out: a program that continues from
// the earlier one runs no further step in this epoch, but everything that comes after the steps.
//
// Workers that train together come to the same save points, with the same decisions: these follow
// from the place, which is the same on all, and from what FitState::agree() has found. Worker 0
// writes the files.
#include "trireme/model/backup_and_restore.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/model/fit_state.h"
#include "trireme/train/sigterm.h"

namespace trireme {
namespace {

constexpr char kFound[] = "found";
constexpr int kSigtermCode = 143;  // As a shell reports a process that SIGTERM has ended.

void remove_if_there(const std::string& path) {
  Files& files = Files::local();
  if (value_or_throw(files.exists(path))) throw_if_error(files.remove(path));
}

}  // namespace

// The checkpoints of one fit(). Its save point owns it.
class BackupAndRestore::Session {
 public:
  Session(internal::FitState& state, const std::string& folder,
          const BackupAndRestoreOptions& options)
      : state_(state),
        folder_(folder),
        options_(options),
        manager_(folder, state.checkpointed(),
                 {.keep = options.keep, .mode = options.mode, .save_on_sigterm = true}),
        saved_step_(state.place().step),
        losses_(state.runner().losses_of_only_worker()) {}

  void restore() {
    const bool found =
        state_.agreement().decide([&] { return std::string(manager_.latest() ? kFound : ""); },
                                  "newest checkpoint") == kFound;
    if (found) {
      try {
        saved_step_ = manager_.restore_or_initialize();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidArgument) throw;
        throw Error(error.code(),
                    absl::StrCat("fit() cannot continue from its checkpoint: ", error.message(),
                                 ". To train anew, give BackupAndRestore another folder"),
                    error.origin());
      }
    }
    const internal::FitPlace& place = state_.place();
    const bool over = place.epoch >= place.epochs || state_.stopped();
    if (found && is_chief() && over) {
      log_info("fit() has ended before, after ", place.epoch, " epochs and ", place.step,
               " steps, and trains no further; to train anew, remove '", folder_, "'");
    } else if (found && is_chief()) {
      log_info("fit() continues at epoch ", place.epoch + 1, " of ", place.epochs, ", after ",
               place.step_of_epoch, " of its steps and ", place.step, " steps in all, from '",
               folder_, "'");
    }
    if (!over && is_chief()) remove_if_there(join_path(folder_, internal::kEndedName));
    if (!found && losses_) manager_.save(saved_step_);
  }

  bool is_due(bool epoch_ended) {
    epoch_ended_ = epoch_ended;
    if (must_wait()) return false;
    if (state_.interrupted() || is_disturbed()) return true;
    const internal::FitPlace& place = state_.place();
    if (options_.save_freq > 0 && place.step - saved_step_ >= options_.save_freq) {
      return epoch_ended || place.steps_per_epoch == 0 ||
             place.step_of_epoch < place.steps_per_epoch;
    }
    return epoch_ended &&
           (options_.save_freq == 0 || place.epoch >= place.epochs || state_.stopped());
  }

  void save() {
    if (is_disturbed()) {
      log_info("fit() goes back to its newest checkpoint, since the only worker was lost");
      throw internal::FitRestart();
    }
    if (must_wait()) return;  // the last steps may have stopped the fit
    const int64_t step = state_.place().step;
    if (state_.interrupted()) {
      manager_.save_if_due(step);
      end_program();
    }
    if (step != saved_step_) manager_.save(step);
    saved_step_ = step;
  }

  void end() {
    manager_.wait();
    state_.agree(false);
    if (state_.interrupted()) end_program();
    if (!is_chief()) return;
    Files& files = Files::local();
    throw_if_error(files.make_directories(folder_));
    if (options_.delete_at_end) {
      internal::CheckpointDirectory directory(files, folder_);
      for (const auto& entry : value_or_throw(directory.list())) {
        throw_if_error(directory.remove(entry));
      }
    }
    const std::string path = join_path(folder_, internal::kEndedName);
    const std::string unfinished = absl::StrCat(path, ".tmp");
    remove_if_there(unfinished);
    throw_if_error(files.write_text(unfinished, absl::StrCat(state_.place().step, "\n")));
    throw_if_error(files.rename(unfinished, path));
    throw_if_error(files.sync_directory(folder_));
  }

  // Returns true once SIGTERM has arrived at this process.
  bool interrupted() const { return sigterm_.received(); }

 private:
  bool is_chief() const { return state_.agreement().is_chief(); }

  // Returns true if the epoch is about to be cut off. A fit() that continued from here would be
  // stopped before it notes the figures of this epoch.
  bool must_wait() const { return state_.stopped() && !epoch_ended_; }

  // Returns true if steps have run again.
  bool is_disturbed() const {
    return losses_ && state_.runner().losses_of_only_worker() != losses_;
  }

  // The threads of a strategy still run, so nothing is destroyed. Workers leave together, so that
  // none of them is missed by another that has not learned yet that the checkpoint is written.
  [[noreturn]] void end_program() const {
    try {
      state_.agreement().any({true}, "exit");
    } catch (const Error&) {  // another worker has left
    }
    log_info("fit() has saved step ", state_.place().step, " to '", folder_,
             "' since SIGTERM has arrived, and the program exits with code ", kSigtermCode);
    std::cout.flush();
    std::fflush(nullptr);
    std::_Exit(kSigtermCode);
  }

  internal::FitState& state_;
  const std::string folder_;
  const BackupAndRestoreOptions options_;
  const internal::SigtermWatch sigterm_;
  CheckpointManager manager_;
  int64_t saved_step_;                   // Step of the last save or restore, or of the beginning.
  const std::optional<int64_t> losses_;  // Losses of the only worker before; nullopt if irrelevant.
  bool epoch_ended_ = false;             // True in the save point at the end of an epoch.
};

BackupAndRestore::BackupAndRestore(std::string folder, BackupAndRestoreOptions options)
    : folder_(std::move(folder)), options_(options) {
  if (folder_.empty() || options_.save_freq < 0 || options_.keep < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "BackupAndRestore needs a folder, and options that are not negative");
  }
}

void BackupAndRestore::on_train_begin(Fit& fit) {
  internal::FitState& state = internal::Access<Fit>::state(fit);
  const auto session = std::make_shared<Session>(state, folder_, options_);
  session_ = session;
  session->restore();
  state.add_save_point({.due = [session](bool ended) { return session->is_due(ended); },
                        .save = [session] { session->save(); },
                        .interrupted = [session] { return session->interrupted(); }});
}

void BackupAndRestore::on_train_end(Fit&, const Logs&) {
  if (const auto session = session_.lock()) session->end();
}

}  // namespace trireme
