#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/checkpoint/pieces.h"

namespace trireme::internal {

// Reads one checkpoint. Every error of damaged data is DATA_LOSS and names the file, and the tensor
// if the damage is in one. Thread-safe.
class CheckpointReader {
 public:
  // Callback for the bytes that were read so far, and all bytes.
  using Progress = std::function<void(uint64_t done, uint64_t total)>;

  // Opens the checkpoint in the folder `path`. Checks the manifest, the length of every file, and
  // the headers: their checksums, and that they have the tensors of the manifest. Returns NOT_FOUND
  // if the folder has no manifest. `files` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> open(Files& files,
                                                                const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Reads a variable of the manifest, all of its shards, and checks the checksums.
  absl::StatusOr<at::Tensor> read(const SavedVariable& variable) const;
  // Reads the slot with this index of a variable.
  absl::StatusOr<at::Tensor> read_slot(const SavedVariable& variable, int slot) const;

  // Reads everything and checks all checksums.
  absl::Status verify(const Progress& progress = {}) const;

 private:
  CheckpointReader(std::string path, Manifest manifest);

  absl::Status check_file(const SavedFile& file, InputFile& input,
                          const std::vector<TensorOfManifest>& tensors) const;
  std::string path_of(const SavedFile& file) const;

  std::string path_;
  Manifest manifest_;
  std::vector<std::unique_ptr<InputFile>> files_;  // Parallel to the files of the manifest.
};

}  // namespace trireme::internal
