#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/safetensors_header.h"

namespace trireme::internal {

// The safetensors files of one state dict, as any program may have written them: a single file, or
// several with an index (model.safetensors.index.json). Not thread-safe.
class StateDictFiles {
 public:
  // Opens a file, an index, or a folder with an index or a model.safetensors, and reads all
  // headers. Returns DATA_LOSS, naming the file, if one is damaged or does not agree with the
  // index. `files` must outlive the object.
  static absl::StatusOr<StateDictFiles> open(Files& files, const std::string& path);

  // A tensor, and the index of its file.
  struct Entry {
    SafetensorsEntry tensor;
    size_t file = 0;
  };
  // Returns the tensors by name.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // Reads one of entries().
  absl::StatusOr<at::Tensor> read(const Entry& entry) const;

 private:
  absl::Status add_file(Files& files, const std::string& path);
  absl::Status add_index(Files& files, const std::string& path);

  std::vector<std::unique_ptr<InputFile>> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace trireme::internal
