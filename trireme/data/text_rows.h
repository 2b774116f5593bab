#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/data/block.h"
#include "trireme/data/number_text.h"

namespace trireme::internal {

// Returns the number of records that are decoded at a time, so that short records with wide columns
// do not take too much memory.
inline int64_t records_per_block(uint64_t row_bytes) {
  constexpr uint64_t kBlockBytes = uint64_t{64} << 20;
  return row_bytes == 0 ? std::numeric_limits<int64_t>::max()
                        : static_cast<int64_t>(std::max<uint64_t>(kBlockBytes / row_bytes, 1));
}

// The rows of a column of text while they are decoded. Not thread-safe.
class TextRows {
 public:
  // Makes room for `rows` texts: rows of `width` bytes or, if that is -1, texts of any length,
  // which have at most `most` bytes together.
  TextRows(int64_t width, int64_t rows, size_t most)
      : width_(width),
        values_(width < 0 ? at::empty({static_cast<int64_t>(most)}, at::kByte)
                          : at::empty({rows, width}, at::kByte)),
        data_(values_.mutable_data_ptr<uint8_t>()) {
    if (width < 0) offsets_.resize(rows + 1);
  }

  // Returns false if a text of this length does not fit into a row.
  bool fits(size_t length) const { return width_ < 0 || length <= static_cast<size_t>(width_); }

  // Sets a row to a text that fits. Texts of any length are set in the order of the rows, and
  // setting one ends those after it. `can_read_ahead` is true if kReadAhead bytes from the
  // beginning of the text are readable.
  void set(int64_t row, std::string_view text, bool can_read_ahead) {
    if (width_ < 0) {
      if (!text.empty()) std::memcpy(data_ + offsets_[row], text.data(), text.size());
      offsets_[row + 1] = offsets_[row] + static_cast<int64_t>(text.size());
      return;
    }
    uint8_t* const to = data_ + row * width_;
    size_t done = text.size();
    if (can_read_ahead && width_ >= 16 && done <= 16) {
      // Copies of a fixed length are much faster.
      const uint64_t words[2] = {first_bytes(text.data(), done),
                                 first_bytes(text.data() + 8, done < 8 ? 0 : done - 8)};
      std::memcpy(to, words, 16);
      done = 16;
    } else if (done > 0) {
      std::memcpy(to, text.data(), done);
    }
    const size_t left = static_cast<size_t>(width_) - done;
    if (left > 0) std::memset(to + done, 0, left);
  }

  // Returns the first rows as the column of a block.
  BlockColumn finish(int64_t rows) {
    if (width_ >= 0) return {values_.narrow(0, 0, rows), {}};
    offsets_.resize(rows + 1);
    return {values_.narrow(0, 0, offsets_.back()).clone(), std::move(offsets_)};
  }

 private:
  // Returns a word in memory order, with zeros after the first `count` bytes.
  static uint64_t first_bytes(const char* from, size_t count) {
    const uint64_t word = number_text::load_word(from);
    return count >= 8 ? word : word & ((uint64_t{1} << (8 * count)) - 1);
  }

  const int64_t width_;
  const at::Tensor values_;
  uint8_t* const data_;
  std::vector<int64_t> offsets_;
};

}  // namespace trireme::internal
