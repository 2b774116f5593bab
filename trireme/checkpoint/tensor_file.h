#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/safetensors_header.h"
#include "trireme/checkpoint/saved_state.h"

// Writing of one safetensors file.
namespace trireme::internal {

struct TensorToSave {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  const void* data = nullptr;  // Contiguous elements; may be null until they are written.
  uint64_t bytes = 0;
};

// Returns INVALID_ARGUMENT, naming the tensor, if these cannot be written into one safetensors
// file: a name that is empty, reserved, given twice or not UTF-8, a dtype that the format does not
// have, or a length that does not belong to the sizes.
absl::Status check_tensors(const std::vector<TensorToSave>& tensors);

// The places of tensors in a safetensors file. Tensors with larger elements come first, so that all
// are aligned, and tensors of equal element size are sorted by name. The data begins at a multiple
// of kDirectBlock and has no gaps. Immutable.
class TensorFileLayout {
 public:
  // The tensors must satisfy check_tensors().
  explicit TensorFileLayout(std::vector<TensorToSave> tensors);

  // Returns the header, with the length before it and the padding behind it.
  const std::string& header() const { return header_; }
  // Returns the tensors in the order of the file.
  const std::vector<TensorToSave>& tensors() const { return tensors_; }
  // Returns the index that tensors()[i] had in the constructor's argument.
  size_t given(size_t i) const { return given_[i]; }
  // Returns the offset of tensors()[i] from the begin of the file.
  uint64_t offset(size_t i) const { return offsets_[i]; }
  // Returns the length of the file.
  uint64_t bytes() const { return bytes_; }
  // Returns the entry of the manifest for a file with this layout.
  SavedFile file(std::string name) const;

 private:
  std::vector<TensorToSave> tensors_;
  std::vector<size_t> given_;
  std::vector<uint64_t> offsets_;
  std::string header_;
  uint64_t bytes_ = 0;
};

struct WrittenFile {
  SavedFile file;
  std::vector<SavedTensor> tensors;  // In the order of the tensors that were given; `file` is 0.
};

// Writes a new file in blocks of 4 MiB and makes its contents durable. Needs no more memory than
// one block. A file that could not be finished is removed.
absl::StatusOr<WrittenFile> write_tensor_file(Files& files, const std::string& path,
                                              std::vector<TensorToSave> tensors);

// Reads and checks the header of a safetensors file. Errors name the path.
absl::StatusOr<SafetensorsHeader> read_safetensors_header(InputFile& file, const std::string& path);

}  // namespace trireme::internal
