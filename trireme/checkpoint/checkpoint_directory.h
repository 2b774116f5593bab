#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/manifest.h"

namespace trireme::internal {

inline constexpr char kManifestName[] = "manifest.json";

struct CheckpointEntry {
  std::string path;
  std::string name;  // Last part of the path, for example "step-0000000042".
  uint64_t step = 0;
};

// Returns the name of the folder of a step, for example "step-0000000042".
std::string checkpoint_name(uint64_t step);
// Returns the step of a folder's name, or nullopt if a checkpoint cannot have this name.
std::optional<uint64_t> checkpoint_step(std::string_view name);

// A folder with checkpoints, each in a folder of its own. A checkpoint exists if it has a manifest,
// which commit() writes last. So a crash at any time leaves the earlier checkpoints as they are and
// the new one either whole or absent. One process at a time may write. Thread-compatible.
class CheckpointDirectory {
 public:
  // `files` must outlive the object.
  CheckpointDirectory(Files& files, std::string path);

  const std::string& path() const { return path_; }

  // Returns the checkpoints, the largest step first. A folder that does not exist has none.
  absl::StatusOr<std::vector<CheckpointEntry>> list() const;
  // Creates the folder of a new checkpoint, empties it if an unfinished save left it, and returns
  // its path. Returns ALREADY_EXISTS if there is a checkpoint of this step.
  absl::StatusOr<std::string> begin(uint64_t step);
  // Makes the folder at `path`, whose files must be finished, a checkpoint. If this fails, the
  // checkpoint may exist or not. Returns DATA_LOSS if a file does not have the manifest's length.
  absl::Status commit(const std::string& path, const Manifest& manifest);
  // Removes a checkpoint: first its manifest, so that a part of it is never taken for a checkpoint.
  absl::Status remove(const CheckpointEntry& entry);
  // Removes what unfinished saves have left, except for the folder at `except`. Leaves alone files
  // that a save does not create.
  absl::Status remove_unfinished(const std::string& except = {});
  // Does the same for the folder of one save, which need not exist.
  absl::Status remove_if_unfinished(const std::string& folder);

 private:
  absl::Status remove_files(const std::string& folder);
  absl::Status remove_folder(const std::string& folder);

  Files& files_;
  std::string path_;
};

}  // namespace trireme::internal
