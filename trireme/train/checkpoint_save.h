#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/ps/ps_saver.h"
#include "trireme/train/checkpoint_objects.h"

namespace trireme::internal {

// Arguments of a CheckpointSave.
struct CheckpointSaveOptions {
  uint64_t step = 0;
  std::optional<double> metric = std::nullopt;
  bool stream = false;
  Duration drain_timeout{};
  // Positions of each iterator, one per worker that trains; empty to read them at the cut.
  std::vector<std::vector<SavedPosition>> positions = {};
};

// One save into a folder, in two parts: the cut, which fixes the contents while training is held,
// and the writing, which may run on another thread. Destroying it before it is written ends the
// save on the servers.
class CheckpointSave {
 public:
  // Makes the cut. `folder` must be empty. The arguments must outlive the save.
  static absl::StatusOr<std::unique_ptr<CheckpointSave>> cut(Files& files,
                                                             const CheckpointObjects& objects,
                                                             const std::string& folder,
                                                             const CheckpointSaveOptions& options);

  // Writes all files and returns the manifest. Blocks until they are durable.
  absl::StatusOr<Manifest> write();

  // Returns the time for which training was held.
  Duration stall() const { return stall_; }
  // Returns the figures of the servers.
  PsSave::Stats server_stats() const { return servers_ ? servers_->stats() : PsSave::Stats{}; }

 private:
  CheckpointSave(Files& files, const CheckpointObjects& objects, std::string folder)
      : files_(files), objects_(objects), folder_(std::move(folder)) {}
  absl::Status make_cut(const CheckpointSaveOptions& options);

  Files& files_;
  const CheckpointObjects& objects_;
  const std::string folder_;
  Manifest manifest_;  // Everything but the files and the variables.
  std::map<const Optimizer*, double> rates_;
  std::unique_ptr<ProgramCopy> program_;
  std::unique_ptr<PsSave> servers_;  // Null without parameter servers.
  Duration stall_{};
};

}  // namespace trireme::internal
