#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

// The contents of a manifest as plain data: which tensors are in which file, and everything else
// that belongs to the state of a job. docs/formats.md has the JSON of it.
namespace trireme::internal {

// Where the bytes of one tensor are.
struct SavedTensor {
  std::string name;     // Name inside the file.
  int file = 0;         // Index into Manifest::files.
  uint64_t offset = 0;  // Offset from the begin of the file.
  uint64_t bytes = 0;
  uint32_t crc = 0;  // CRC-32C of the bytes.

  bool operator==(const SavedTensor&) const = default;
};

// Consecutive rows of a variable, as one task held them. A scalar has one row.
struct SavedShard {
  int64_t first = 0;  // First row.
  int64_t count = 0;  // Number of rows.
  SavedTensor contents;
  std::vector<SavedTensor> slots;  // Parallel to SavedVariable::slots.
  double step = 0;                 // Updates that the optimizer has applied.

  bool operator==(const SavedShard&) const = default;
};

// A variable. Slots have its dtype and its sizes.
struct SavedVariable {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  bool trainable = false;
  std::string rule;                       // Update rule of the optimizer; empty without one.
  std::map<std::string, double> options;  // Options of the optimizer, with its learning rate.
  std::vector<std::string> slots;         // Names of the slots.
  std::vector<SavedShard> shards;         // In the order of their rows, which they cover once.

  // Returns the number of rows; a scalar has one.
  int64_t rows() const { return sizes.empty() ? 1 : sizes[0]; }
  // Returns the bytes of one row.
  uint64_t row_bytes() const;
  // Returns the bytes of the contents, which are those of each slot too.
  uint64_t bytes() const { return static_cast<uint64_t>(rows()) * row_bytes(); }
  // Returns the sizes of `count` rows.
  std::vector<int64_t> sizes_of_rows(int64_t count) const;

  bool operator==(const SavedVariable&) const = default;
};

// A file with tensors.
struct SavedFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t header_bytes = 0;  // Length of the header with its length field and its padding.
  uint32_t header_crc = 0;    // CRC-32C of these bytes.

  bool operator==(const SavedFile&) const = default;
};

// The position of an iterator.
struct SavedPosition {
  uint64_t seed = 0;
  uint64_t next = 0;  // Number of elements that were drawn.
  // Numbers below `next` that were not used, ascending. For a dataset that workers share, the
  // bounds of these numbers (docs/formats.md).
  std::vector<uint64_t> returned;

  bool operator==(const SavedPosition&) const = default;
};

// An iterator, or the iterators that the workers have of one dataset.
struct SavedIterator {
  std::string name;
  bool per_worker = false;
  std::string dataset;                   // Description of the dataset.
  std::vector<SavedPosition> positions;  // One per worker, in the order of input_pipeline_id.

  bool operator==(const SavedIterator&) const = default;
};

// Pushes of `writer` with a number less than `below` are decided.
struct SavedFence {
  uint64_t writer = 0;
  uint64_t below = 0;

  bool operator==(const SavedFence&) const = default;
};

// Everything that a checkpoint contains, except for the bytes of the tensors.
struct Manifest {
  uint64_t step = 0;
  std::string id;        // Random name of the save.
  std::string saved_at;  // Time of the save: UTC, ISO 8601.
  std::optional<double> metric;
  uint64_t seed = 0;
  std::map<std::string, uint64_t> functions;  // Calls that were made of each captured function.
  std::vector<SavedFence> fences;
  std::vector<SavedFile> files;
  std::vector<SavedVariable> variables;
  std::vector<SavedIterator> iterators;
  std::map<std::string, std::string> texts;  // State that the program describes itself, by name.

  bool operator==(const Manifest&) const = default;
};

// A tensor of a manifest with its variable. Points into the manifest.
struct TensorOfManifest {
  const SavedVariable* variable;
  const SavedShard* shard;
  const SavedTensor* tensor;
};
// Returns all tensors, sorted by file and offset.
std::vector<TensorOfManifest> tensors_of(const Manifest& manifest);

}  // namespace trireme::internal
