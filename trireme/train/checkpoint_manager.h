#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/train/checkpointed.h"
#include "trireme/train/restore_options.h"

namespace trireme {

class Files;

// How parameter servers save their variables while training goes on.
enum class SaveMode {
  kCopy,    // Copy everything in memory first: the shortest wait, but needs as much memory again.
  kStream,  // Write from the live data, and copy only blocks that are about to change.
};

// Action of save() while an earlier save is still being written.
enum class WhenBusy {
  kWait,  // Wait until it is written.
  kSkip,  // Return false and save nothing.
};

// Options of a CheckpointManager.
struct CheckpointOptions {
  // Number of checkpoints that are kept, counted from the newest; 0 to keep all.
  int keep = 3;
  // True to keep the checkpoint with the best metric as well.
  bool keep_best = false;
  // True if a larger metric is better.
  bool higher_is_better = false;
  // Number of steps between two saves of save_if_due(); 0 for no such rule.
  int64_t every_steps = 0;
  // Time between two saves of save_if_due(); 0 for no such rule.
  std::chrono::seconds every{0};
  // How parameter servers save their variables.
  SaveMode mode = SaveMode::kCopy;
  // Action of save() while an earlier save is still being written.
  WhenBusy when_busy = WhenBusy::kWait;
  // Time for closures that run to complete before a save. Closures that have changed nothing by
  // then are requeued and run after the cut.
  std::chrono::milliseconds drain_timeout = std::chrono::seconds(30);
  // True to let SIGTERM save instead of ending the process: the next save_if_due() saves, waits
  // until the checkpoint is written, and interrupted() returns true from then on. A handler that
  // the program had installed before is called too. Without one, a second SIGTERM ends the process.
  bool save_on_sigterm = false;
};

// Figures of one save.
struct SaveStats {
  int64_t step = 0;                               // Step of the checkpoint.
  std::chrono::nanoseconds stall{0};              // Time for which training was held at the cut.
  std::chrono::nanoseconds copy{0};               // Part of it that the slowest server copied.
  std::chrono::nanoseconds pool_wait{0};          // Time that updates waited in kStream, in all.
  std::chrono::nanoseconds longest_pool_wait{0};  // Longest wait of one update in kStream.
  std::chrono::nanoseconds write{0};              // Time from the cut to the finished checkpoint.
  uint64_t bytes = 0;                             // Length of all files together.
  uint64_t extra_bytes = 0;                       // Most memory that one server used for the save.
};

// Saves the state of a training program while it runs, and restores it: into the same cluster,
// another number of parameter servers, or a program without a cluster.
//
//   tr::CheckpointManager manager("/shared/run7", {net, optimizer, data}, {.every_steps = 1000});
//   for (int64_t i = manager.restore_or_initialize(); i < 100000;) {
//     for (int k = 0; k < 100; ++k, ++i) coordinator.schedule(step, data.iterator());
//     coordinator.join();  // closures that are only queued are not in a checkpoint
//     manager.save_if_due(i);
//   }
//   manager.wait();
//
// A checkpoint is a folder step-N in the manager's folder. It has the contents of all variables,
// the optimizers' state with its learning rates, the positions of iterators, texts, the call counts
// of all captured functions, and the seed of set_seed(). All of it is of one moment, the cut:
// updates of a closure are in it either all or not at all. docs/checkpoints.md is the guide.
//
// save() and restore() hold the coordinators of the variables' strategy, and its functions that
// other threads call. Steps on variables in the program's memory must not run meanwhile.
// Thread-safe otherwise. Only one process may save into a folder at a time.
//
// Under MultiWorkerMirroredStrategy every worker makes the same manager and makes the same calls,
// in the same order. Worker 0 decides and writes, so the files are its own, and the calls of all
// workers return the same, or throw the same error. A checkpoint is restored by every worker, so
// all of them must share the folder. A manager without variables of the strategy, such as that of
// an iterator alone, is made in strategy.scope().
class CheckpointManager {
 public:
  // Prepares to save `objects`. Creates neither the folder nor a checkpoint. Throws Error if a
  // variable has two optimizers, if variables belong to two strategies, if an optimizer is a
  // recipe, or if there is nothing to save.
  CheckpointManager(std::string directory, const std::vector<Checkpointed>& objects,
                    CheckpointOptions options = {});
  // Blocks until the save in flight is written. Logs its error if it fails.
  ~CheckpointManager();

  // Saves a checkpoint of `step`. Returns true when training may go on, and writes in the
  // background. Returns false if an earlier save is being written and the options say kSkip.
  // Throws Error if the cut fails or there is a checkpoint of this step, and throws the error of an
  // earlier save once. Throws PsLost if a parameter server is lost, and so do save_if_due(), wait()
  // and the restores. A save that fails leaves no checkpoint and changes no other.
  bool save(int64_t step, std::optional<double> metric = std::nullopt);
  // Saves if `every_steps` or `every` have passed since the last save, or since the restore, or if
  // SIGTERM has arrived, at any worker. Returns true if it has saved.
  bool save_if_due(int64_t step, std::optional<double> metric = std::nullopt);
  // Returns true once SIGTERM has arrived and the state was saved. The training loop should end.
  bool interrupted() const;
  // Blocks until the save in flight is written. Throws its error.
  void wait();
  // Returns the figures of the last save that this process has written; all are zero before the
  // first.
  SaveStats last_save() const;

  // Restores the newest checkpoint and returns its step. A checkpoint that is damaged, or that the
  // disk does not return, is skipped with a warning that names the file and the tensor, and the one
  // before it is used. Returns 0 and changes nothing if there is no checkpoint. Throws Error as
  // restore() does, DATA_LOSS if all checkpoints are damaged, and UNAVAILABLE if some of them
  // cannot be read and none can be used.
  int64_t restore_or_initialize();
  // Restores a checkpoint and returns its step. `checkpoint` is a path, or the name of a checkpoint
  // in the manager's folder. Throws INVALID_ARGUMENT, which lists all differences, if names,
  // shapes, dtypes, optimizers, iterators or names of texts differ, before anything is changed.
  // Throws DATA_LOSS if the checkpoint is damaged; variables on servers may be changed in part
  // then.
  //
  // With `partial`, restores what agrees. With `patterns`, restores only variables with these
  // names and the state of their optimizers, and neither learning rates nor iterators, texts, call
  // counts and the seed.
  int64_t restore(const std::string& checkpoint, const RestoreOptions& options = {});

  // Returns the path of the newest checkpoint that this process finds, or nullopt if there is none.
  std::optional<std::string> latest() const;
  // Returns the paths of all checkpoints that this process finds, the newest first.
  std::vector<std::string> checkpoints() const;

 private:
  friend struct internal::Access<CheckpointManager>;
  CheckpointManager(std::string directory, const std::vector<Checkpointed>& objects,
                    CheckpointOptions options, Files& files);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

template <>
struct internal::Access<CheckpointManager> {
  // Makes a manager that uses `files`, which must outlive it, for the program's own files.
  static std::unique_ptr<CheckpointManager> make(std::string directory,
                                                 const std::vector<Checkpointed>& objects,
                                                 const CheckpointOptions& options, Files& files) {
    return std::unique_ptr<CheckpointManager>(
        new CheckpointManager(std::move(directory), objects, options, files));
  }
};

}  // namespace trireme
