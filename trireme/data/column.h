#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

// A column of the records in files, which becomes one tensor of each element.
struct Column {
  std::string name;  // name in the file
  // Type of the numbers: int64, int32, uint8, bool, float32 or float64. Text has torch::kByte.
  c10::ScalarType dtype = at::kFloat;
  // Shape of the value in one record; empty for a single number. The first size may be -1 if the
  // number of values differs between records: such elements are stacked by padded_batch() only.
  std::vector<int64_t> sizes = {};
  // Number that stands in for a field that is empty or missing. Without it, such a field is an
  // error. An empty text needs none.
  std::optional<double> missing = {};
  // True for text: the bytes of the text, filled up with zeros to sizes[0]. A longer text is an
  // error. See text_column().
  bool is_text = false;

  // Compares all members.
  bool operator==(const Column&) const = default;
};

// Returns a column of text of at most `bytes` bytes. Its tensors are of torch::kByte and have that
// size. StringLookup turns them into numbers.
Column text_column(std::string name, int64_t bytes);

}  // namespace trireme
