#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "trireme/base/files.h"
#include "trireme/data/block.h"
#include "trireme/data/record_format.h"
#include "trireme/observe/metrics.h"

namespace trireme::internal {

struct RecordReaderOptions {
  std::string path;
  int threads = 1;              // threads that decode in advance
  int64_t most_records = 1024;  // records that are decoded to one block at most
  bool skip_bad = false;        // leave out records that are not valid, and count them
  Counter* bad = nullptr;       // counts them too, if it is not null
};

// Opens a file of records. The file is cut into pieces, which threads of the reader decode in
// advance; blocks come in the order of the file.
absl::StatusOr<std::unique_ptr<BlockReader>> open_records(
    Files& files, std::shared_ptr<const RecordFormat> format, RecordReaderOptions options);

// Returns the number of records that readers of this process have left out.
uint64_t bad_records();

}  // namespace trireme::internal
