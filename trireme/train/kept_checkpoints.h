#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/checkpoint_directory.h"

namespace trireme::internal {

// Decides which checkpoints of a folder are kept: the newest ones, and the one with the best
// metric. Remembers metrics, so that each manifest is read at most once. Not thread-safe.
class KeptCheckpoints {
 public:
  // The options of the same names of a CheckpointManager.
  struct Rule {
    int keep = 0;
    bool keep_best = false;
    bool higher_is_better = false;
  };
  // `files` must outlive the object.
  KeptCheckpoints(Files& files, const Rule& rule) : files_(files), rule_(rule) {}

  // Notes the metric of a checkpoint that was just saved.
  void add(uint64_t step, std::optional<double> metric) { metrics_[step] = metric; }
  // Notes that a checkpoint is damaged. It does not count among those that are kept.
  void add_damaged(uint64_t step) { damaged_.insert(step); }
  // Notes that the program has gone back behind a checkpoint whose files could not be read. The
  // error may pass, so it counts among those that are kept.
  void add_unreadable(uint64_t step) { unreadable_.insert(step); }
  // Notes that a checkpoint was read without errors.
  void add_readable(uint64_t step) { unreadable_.erase(step); }
  // Removes the checkpoint of a step that is about to be saved again, if it is damaged or the
  // program has gone back behind it.
  absl::Status make_room(CheckpointDirectory& directory, uint64_t step);
  // Removes the checkpoints that are not kept. Keeps the one of `saved` in any case: it is not the
  // newest if the program has returned to an earlier step.
  absl::Status remove_others(CheckpointDirectory& directory, uint64_t saved);

 private:
  bool is_damaged(uint64_t step) const { return damaged_.contains(step); }
  absl::Status remove(CheckpointDirectory& directory, const CheckpointEntry& entry);
  // Returns the metric of a checkpoint; nullopt if it has none or cannot be read.
  std::optional<double> metric_of(const CheckpointEntry& entry);

  Files& files_;
  const Rule rule_;
  std::map<uint64_t, std::optional<double>> metrics_;  // By step.
  std::set<uint64_t> damaged_;                         // Steps of damaged checkpoints.
  std::set<uint64_t> unreadable_;                      // Steps given to add_unreadable().
};

}  // namespace trireme::internal
