#include "trireme/train/kept_checkpoints.h"

#include <vector>

#include "trireme/base/status.h"
#include "trireme/checkpoint/manifest.h"

namespace trireme::internal {

std::optional<double> KeptCheckpoints::metric_of(const CheckpointEntry& entry) {
  const auto known = metrics_.find(entry.step);
  if (known != metrics_.end()) return known->second;
  std::optional<double>& metric = metrics_[entry.step];
  const auto text = files_.read_text(join_path(entry.path, kManifestName), kMostManifestBytes);
  if (!text.ok()) return metric;
  const auto manifest = parse_manifest(*text);
  if (manifest.ok()) metric = manifest->metric;
  return metric;
}

absl::Status KeptCheckpoints::remove(CheckpointDirectory& directory, const CheckpointEntry& entry) {
  metrics_.erase(entry.step);
  damaged_.erase(entry.step);
  unreadable_.erase(entry.step);
  return directory.remove(entry);
}

absl::Status KeptCheckpoints::make_room(CheckpointDirectory& directory, uint64_t step) {
  if (!is_damaged(step) && !unreadable_.contains(step)) return absl::OkStatus();
  TRIREME_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, directory.list());
  for (const CheckpointEntry& entry : entries) {
    if (entry.step == step) return remove(directory, entry);
  }
  return absl::OkStatus();
}

absl::Status KeptCheckpoints::remove_others(CheckpointDirectory& directory, uint64_t saved) {
  if (rule_.keep == 0) return absl::OkStatus();
  TRIREME_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, directory.list());
  std::optional<uint64_t> best;
  std::optional<double> best_metric;
  for (const CheckpointEntry& entry : entries) {
    if (!rule_.keep_best || is_damaged(entry.step)) continue;
    const std::optional<double> metric = metric_of(entry);
    if (!metric) continue;
    // Entries are ordered from the newest, which wins among equals.
    if (!best_metric ||
        (rule_.higher_is_better ? *metric > *best_metric : *metric < *best_metric)) {
      best = entry.step;
      best_metric = metric;
    }
  }
  int kept = 0;
  for (const CheckpointEntry& entry : entries) {
    if (!is_damaged(entry.step)) {
      if (kept++ < rule_.keep || entry.step == best || entry.step == saved) continue;
    }
    TRIREME_RETURN_IF_ERROR(remove(directory, entry));
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
