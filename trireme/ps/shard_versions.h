#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// Copies the versions in the response of one server to the variables that they belong to.
// `slices` are the parts of variables in the order of the request. `index` is the member of a slice
// that says which entry of `versions` it belongs to; its member `shard` says which shard.
template <typename Body, typename Slice>
absl::Status collect_versions(const Message& response, const std::vector<Slice>& slices,
                              size_t Slice::*index, std::vector<ShardVersions>& versions) {
  TRIREME_ASSIGN_OR_RETURN(const Body body, parse_body<Body>(response));
  if (static_cast<size_t>(body.versions_size()) != slices.size()) {
    return make_status(ErrorCode::kInternal,
                       absl::StrCat("a parameter server answered with ", body.versions_size(),
                                    " versions for ", slices.size(), " shards"));
  }
  for (size_t i = 0; i < slices.size(); ++i) {
    versions[slices[i].*index][slices[i].shard] = body.versions(static_cast<int>(i));
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
