#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/model/callback.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {

// Options of BackupAndRestore.
struct BackupAndRestoreOptions {
  // Number of steps from one save to the next. 0 to save at the end of each epoch.
  int64_t save_freq = 0;
  // Number of checkpoints that are kept, counted from the newest; 0 to keep all.
  int keep = 2;
  // True to remove the checkpoints when the fit has ended. A program that is started again then
  // trains again. Otherwise it finds the trained weights, and fit() returns at once.
  bool delete_at_end = false;
  // How parameter servers save their variables.
  SaveMode mode = SaveMode::kCopy;
};

// Lets a fit() that was interrupted continue where it stopped:
//
//   model.fit(data, {.epochs = 50, .callbacks = {tr::BackupAndRestore("backup")}});
//
// Before the first epoch it restores the newest checkpoint in the folder, if there is one, and
// afterwards it saves one at the end of each epoch, or every so many steps. Files are written while
// the training goes on. A checkpoint has everything that the rest of the fit depends on: variables,
// optimizer, position in the data, history, and the states of all callbacks. So a program that was
// killed and started again, under a strategy with one worker, ends with exactly the weights and the
// history of one that was not. It must make the same model and the same callbacks. If the only
// worker of a cluster is lost, the fit goes back to its newest checkpoint by itself.
//
// While the fit runs, SIGTERM no longer ends the process at once: the fit saves after the current
// execution, or after a validation that runs, and the process exits with code 143. A second SIGTERM
// ends it without a save.
//
// Under MultiWorkerMirroredStrategy worker 0 saves. SIGTERM at any worker lets all of them save at
// one step and exit.
//
// The folder must be shared with all parameter servers, or with all workers that train together
// (docs/checkpoints.md), and used by one program at a time. When the fit has ended, it has a file
// `ended`, which evaluate_checkpoints() looks for.
class BackupAndRestore : public Callback {
 public:
  // Makes the callback. Throws Error if an option is not valid.
  explicit BackupAndRestore(std::string folder, BackupAndRestoreOptions options = {});

  void on_train_begin(Fit& fit) override;
  void on_train_end(Fit& fit, const Logs& logs) override;

 private:
  class Session;

  std::string folder_;
  BackupAndRestoreOptions options_;
  std::weak_ptr<Session> session_;  // Lives as long as the fit().
};

namespace internal {

// Name of the file in the folder of a BackupAndRestore that says that the fit has ended.
inline constexpr char kEndedName[] = "ended";

}  // namespace internal
}  // namespace trireme
