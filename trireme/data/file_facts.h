#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/data/column.h"
#include "trireme/data/dataset_step.h"

namespace trireme::internal {

// Check sources of files and generators, as add_facts() does for all steps.
absl::Status add_files(DatasetStep& step);
absl::Status add_generator(DatasetStep& step);

// Convert columns to and from their definitions.
proto::ColumnDef to_def(const Column& column);
Column from_def(const proto::ColumnDef& def);

// Returns the name of the method of Dataset that makes a source of this format.
const char* format_name(const proto::DatasetStep::Files& files);
// Returns the names of the files in readable form.
std::string describe_files(const proto::DatasetStep::Files& files);

}  // namespace trireme::internal
