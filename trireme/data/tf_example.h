#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/data/block.h"
#include "trireme/data/tf_schema.h"

namespace trireme::internal {

// Decodes serialized tf.Examples, one after the other, into the columns of a block. Not
// thread-safe.
class TfExampleRows {
 public:
  // Allocates the memory for `most` records. The schema must outlive the object.
  TfExampleRows(const TfExampleSchema& schema, int64_t most);

  // Adds a record. Returns an empty text, or what is wrong with the record, which is then left out.
  // At most as many records as the constructor has been told may be added. The bytes must stay
  // valid until finish().
  std::string add(std::string_view example);
  // Returns the records. No more records can be added.
  BlockPtr finish();

 private:
  // Memory of a column. That of a ragged one grows with the number of values.
  struct Slots {
    at::Tensor memory;               // one axis; of uint8 for text
    char* data = nullptr;            // begin of the memory
    int64_t capacity = 0, used = 0;  // numbers of values; `used` is for ragged columns only
    std::vector<int64_t> offsets;    // for ragged columns: places of the rows along axis 0
  };

  bool find_features(std::string_view example);
  bool find_entry(std::string_view entry, size_t position);
  void keep_entry(std::string_view key, std::string_view value, size_t position);
  int column_of(std::string_view key, size_t position);
  // The following return false, with fault_ set, if the record is not valid.
  bool add_feature(size_t column);
  bool add_missing(size_t column);
  bool add_text(size_t column, std::string_view list);
  bool add_numbers(size_t column, std::string_view list);
  bool put_text(size_t column, std::string_view text);
  bool put_numbers(size_t column, std::string_view run);
  template <typename... Parts>
  bool fail(const Parts&... parts) {
    fault_ = absl::StrCat(parts...);
    return false;
  }
  char* place(size_t column, int64_t values);

  struct Guess {
    std::string_view key;
    int column;
  };

  const TfExampleSchema& schema_;
  std::vector<Slots> slots_;  // by column
  int64_t rows_ = 0;
  std::vector<Guess> guesses_;            // keys of the records before, by position in the record
  std::vector<std::string_view> found_;   // features of the current record, by column
  std::deque<std::string> joined_;        // features of the current record that came in parts
  std::string fault_;                     // what is wrong with the current record
  std::string joined_list_, joined_run_;  // list and values that came in parts
};

}  // namespace trireme::internal
