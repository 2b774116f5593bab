#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/ps/saves.pb.h"
#include "trireme/ps/stored_variable.h"

namespace trireme::internal {

// The variables of a save, and the places of their contents and of their optimizers' state in the
// server's file. The part of the file behind the header is divided into blocks of kBlockBytes, and
// the tensors into segments: the bytes of a tensor that lie within one block. A variable that a
// session has placed on an accelerator has its segments in memory of the host, to which fetch()
// copies its contents. Immutable otherwise, and keeps the variables alive.
class SavedImage {
 public:
  static constexpr uint64_t kBlockBytes = 1 << 20;

  // Fails if the tensors cannot be written into a file of the format.
  static absl::StatusOr<std::shared_ptr<const SavedImage>> make(
      std::vector<std::shared_ptr<StoredVariable>> variables);

  const std::vector<std::shared_ptr<StoredVariable>>& variables() const { return variables_; }
  const TensorFileLayout& layout() const { return layout_; }

  // Copies the contents of a variable to the memory of its segments, if it is on an accelerator.
  // Neither may be in use by another thread.
  void fetch(const StoredVariable& variable) const;
  // Returns the bytes of the memory for variables on accelerators.
  uint64_t fetched_bytes() const;

  struct Segment {
    const char* data;  // memory of the variable, of fetch(), or of its optimizer's state
    uint64_t offset;   // offset behind the header of the file
    uint64_t bytes;
  };
  // Returns all segments, in the order of the file.
  const std::vector<Segment>& segments() const { return segments_; }
  // Returns the length of the file behind the header.
  uint64_t data_bytes() const { return layout_.bytes() - layout_.header().size(); }
  size_t blocks() const { return first_segments_.size() - 1; }
  // Returns the index of the first segment of a block, or the number of segments for blocks().
  size_t first_segment(size_t block) const { return first_segments_[block]; }

  // The contents of a variable, or one slot of its optimizer, in the file.
  struct Place {
    uint64_t offset = 0;  // offset behind the header of the file
    uint64_t bytes = 0;
    size_t first_segment = 0;
    size_t segments = 0;

    // Returns the index of the segment that has the tensor's byte at `at`.
    size_t segment_of(uint64_t at) const {
      return first_segment + (offset + at) / kBlockBytes - offset / kBlockBytes;
    }
  };
  // Returns the places of the tensors of a variable: its contents first, then the slots.
  const std::vector<Place>& places(const StoredVariable& variable) const;

  // Sets the shards of the answer from the checksums of the segments, and the number of updates of
  // each variable's optimizer.
  void describe(const std::vector<uint32_t>& crcs, const std::vector<double>& steps,
                WaitSaveResponse& response) const;

 private:
  SavedImage(std::vector<std::shared_ptr<StoredVariable>> variables,
             std::vector<at::Tensor> fetched,
             std::vector<StoredVariable::SavedOptimizer> optimizers, TensorFileLayout layout);

  const std::vector<std::shared_ptr<StoredVariable>> variables_;
  // Parallel to the variables; undefined for those in the memory of the host.
  const std::vector<at::Tensor> fetched_;
  const std::vector<StoredVariable::SavedOptimizer> optimizers_;
  const TensorFileLayout layout_;
  std::vector<Segment> segments_;
  std::vector<size_t> first_segments_;
  std::vector<std::vector<Place>> places_;  // parallel to the variables
  absl::flat_hash_map<const StoredVariable*, size_t> indices_;
};

// Copies bytes and returns their CRC-32C, computed on the copy.
uint32_t copy_with_crc(char* to, const char* from, uint64_t bytes);

}  // namespace trireme::internal
