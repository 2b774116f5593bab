#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/data/block.h"
#include "trireme/data/column.h"

namespace trireme::internal {

// The part of Trireme that uses Arrow. It is a library of its own, libtrireme_parquet.so, which is
// loaded when the first Parquet file is read (docs/decisions/parquet-plugin.md). It is not linked
// with the rest of Trireme: only the classes of this header, whose functions are all virtual or
// inline, are known to both sides. Thread-safe.
class ParquetPlugin {
 public:
  virtual ~ParquetPlugin() = default;
  // Opens a file. Decodes on at most `threads` threads; 0 stands for all cores, at most 4. The
  // columns must be valid for Dataset::parquet(). Errors do not name the file, here and below.
  virtual absl::StatusOr<std::unique_ptr<BlockReader>> open(std::unique_ptr<InputFile> file,
                                                            std::vector<Column> columns,
                                                            int threads) = 0;
  // Returns the columns of numbers of a file.
  virtual absl::StatusOr<std::vector<Column>> columns(std::unique_ptr<InputFile> file) = 0;
};

// Name and type of the function that the library exports. It returns an object that lives until the
// process ends.
inline constexpr char kParquetLibrary[] = "libtrireme_parquet.so";
inline constexpr char kParquetFunction[] = "trireme_parquet_plugin";
using ParquetPluginFunction = ParquetPlugin*();

}  // namespace trireme::internal
