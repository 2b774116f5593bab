#include "trireme/collective/group.h"

#include "absl/strings/str_cat.h"

namespace trireme::internal {

std::string Group::name_of(int rank) const {
  return absl::StrCat("rank ", rank, " (", members()[rank].task.to_string(), ")");
}

}  // namespace trireme::internal
