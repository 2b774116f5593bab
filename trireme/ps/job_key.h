#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace trireme {

// Names one generation of a job. An empty id stands for no job.
struct JobKey {
  std::string id;
  uint64_t generation = 0;

  bool operator==(const JobKey&) const = default;
};

// Returns INVALID_ARGUMENT unless `id` is a valid id of a job: 1 to 128 letters, digits, '.', '_'
// and '-'.
[[nodiscard]] absl::Status check_job_id(const std::string& id);

// Returns the ABORTED error for calls of a generation after a newer one has begun.
[[nodiscard]] absl::Status replaced_generation(const JobKey& job, uint64_t newer);

}  // namespace trireme
