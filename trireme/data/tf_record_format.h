#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.pb.h"
#include "trireme/data/record_format.h"

namespace trireme::internal {

// Returns the format of TFRecord files whose records are tf.Examples, with the features that are
// the columns of the definition. The definition may come from a peer.
absl::StatusOr<std::shared_ptr<const RecordFormat>> make_tf_record_format(
    const proto::DatasetStep::Files& def);

}  // namespace trireme::internal
