#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/ps/server_request.h"
#include "trireme/ps/variables.pb.h"

namespace trireme::internal {

// Splits a push to any number of variables by the servers that hold their shards, and makes a
// request for each server. Used for one push. Not thread-safe.
class ShardedPush {
 public:
  // Fails if the values or the row ids of some push do not fit its variable.
  static absl::StatusOr<ShardedPush> split(const std::vector<PsPush>& pushes);

  // Returns the size of the values in all requests.
  uint64_t bytes() const { return bytes_; }

  // Returns one request for each server, in the order of the servers. Called once.
  std::vector<ServerRequest> make_requests(const PushOptions& options);

 private:
  // Everything that is pushed to one server.
  struct ServerBatch {
    PushRequest body;
    std::vector<at::Tensor> tensors;  // for each slice its row ids, if it has any, and its values
    bool by_rows = false;             // true if some slices are rows with ids
  };

  // Adds the slices of one update to the batches of their servers.
  absl::Status add(const PsPush& push);

  std::map<int, ServerBatch> batches_;  // by server
  uint64_t bytes_ = 0;
};

}  // namespace trireme::internal
