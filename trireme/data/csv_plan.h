#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.pb.h"

namespace trireme::internal {

// How the fields of CSV records become columns. Checked.
struct CsvPlan {
  // A column of a block.
  struct Column {
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::vector<int64_t> sizes;
    bool is_text = false;
    int64_t width = 1;  // numbers in a row, or bytes of a text; -1 for texts of any length
    std::optional<double> missing;
  };
  // A field that is used, as number `slot` of a row of its column.
  struct Field {
    size_t number = 0;  // in the line, counted from 0
    size_t column = 0;
    size_t slot = 0;
    std::string name;
  };

  char delimiter = ',';
  bool has_header = false;
  std::vector<std::string> header;  // names of all fields, or empty
  size_t field_count = 0;           // fields of a line
  std::vector<Column> columns;
  std::vector<Field> fields;  // in the order of the line
  uint64_t row_bytes = 0;     // bytes of a row, without texts of any length
};

// Checks a definition, which may come from a peer.
absl::StatusOr<CsvPlan> make_csv_plan(const proto::DatasetStep::Files& def);

// Returns a dtype for a message, as "a float32" or "an int64".
std::string dtype_with_article(c10::ScalarType dtype);

}  // namespace trireme::internal
