#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.pb.h"
#include "trireme/data/record_format.h"

namespace trireme::internal {

// Returns the format of files of lines, which end with \n or \r\n. The definition may come from a
// peer: everything in it is checked.
absl::StatusOr<std::shared_ptr<const RecordFormat>> make_text_format(
    const proto::DatasetStep::Files& def);

}  // namespace trireme::internal
