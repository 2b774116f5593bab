#include "trireme/ps/job_key.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme {

absl::Status check_job_id(const std::string& id) {
  constexpr size_t kLongest = 128;
  const bool valid = !id.empty() && id.size() <= kLongest && std::ranges::all_of(id, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (valid) return absl::OkStatus();
  return invalid_argument(absl::StrCat("'", id, "' is not a valid id of a job; use 1 to ", kLongest,
                                       " letters, digits, '.', '_' and '-'"));
}

absl::Status replaced_generation(const JobKey& job, uint64_t newer) {
  return make_status(
      ErrorCode::kAborted,
      absl::StrCat("a newer program of job '", job.id, "' has taken over: generation ", newer,
                   " follows generation ", job.generation,
                   ", which this program belongs to; end this program, or give it another job"));
}

}  // namespace trireme
