#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/data/column.h"

namespace trireme {

// Files to read: a path, a pattern such as "train-*.csv", or a list of paths and patterns.
class FileNames {
 public:
  FileNames(const char* pattern) : patterns_{pattern} {}                            // NOLINT
  FileNames(std::string pattern) : patterns_{std::move(pattern)} {}                 // NOLINT
  FileNames(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}  // NOLINT

  // Returns the paths and patterns.
  const std::vector<std::string>& patterns() const { return patterns_; }

 private:
  std::vector<std::string> patterns_;
};

// Options of Dataset::text_lines().
struct TextOptions {
  // Bytes of the longest line.
  int64_t bytes = 256;
  // Number of threads that decode records; 0 to use all cores, at most 4. The order of the elements
  // does not depend on it. So it is for all formats.
  int threads = 0;
  // True to leave out records that are not valid, and to count them (`trireme status --input`).
  // Otherwise the first one is an error. So it is for all formats.
  bool skip_bad_records = false;
};

// Options of Dataset::csv().
struct CsvOptions {
  // The columns to read, by the names in the first line of the files, or if there are no names, one
  // column for each field of a line, in order. Without columns, elements have two tensors of
  // float32: all numbers of a line but the label, and the label. The names are then read from the
  // first file by Dataset::csv().
  std::vector<Column> columns = {};
  // Name of the label if there are no `columns`. Empty for the last field.
  std::string label = "";
  // Character between the fields.
  char delimiter = ',';
  // True if the first line of each file has the names of the fields.
  bool has_header = true;
  int threads = 0;                // as in TextOptions
  bool skip_bad_records = false;  // as in TextOptions
};

// Options of Dataset::tf_records().
struct TfRecordOptions {
  // Features of the tf.Example to read, by name. Features of bytes are columns of text.
  std::vector<Column> columns;
  int threads = 0;                // as in TextOptions
  bool skip_bad_records = false;  // as in TextOptions
};

// Options of Dataset::parquet().
struct ParquetOptions {
  // Columns to read, by name. Empty to read all columns of numbers with the types that they have in
  // the first file, which is then read by Dataset::parquet().
  std::vector<Column> columns = {};
  int threads = 0;  // as in TextOptions
};

// Options of Dataset::safetensors().
struct SafetensorsOptions {
  // Tensors to read, by name, and with the shape of one row. Empty to take all tensors of the first
  // file, which is then read by Dataset::safetensors().
  std::vector<Column> columns = {};
};

}  // namespace trireme
