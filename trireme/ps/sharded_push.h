#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/ps/server_request.h"
#include "trireme/ps/sharded_pull.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// Splits a push to any number of variables by the servers that hold their shards: makes a request
// for each server and reads the versions in the responses. Used for one push. Not thread-safe.
class ShardedPush {
 public:
  // Fails if the values or the row ids of some push do not fit its variable, or if two pushes name
  // the same variable.
  static absl::StatusOr<ShardedPush> split(const std::vector<PsPush>& pushes);

  // Returns the size of the values in all requests.
  uint64_t bytes() const { return bytes_; }

  // Lets the requests read the variables of `pull` after the updates. Returns false, without any
  // change, if there are none, or if that is not possible: some are pulled by rows, are large, or
  // are on servers to which nothing is pushed.
  bool add(const ShardedPull& pull);
  // Returns the servers to which something is pushed, in order.
  std::vector<int> servers() const;

  // Returns one request for each server, in the order of the servers. Called once.
  std::vector<ServerRequest> make_requests(const PushOptions& options);

  // Returns the versions of the shards that were changed, in the order of the pushes. `responses`
  // are in the order of the requests.
  absl::StatusOr<std::vector<ShardVersions>> versions(const std::vector<Message>& responses) const;

 private:
  // The part of one push that goes to one shard.
  struct Slice {
    size_t push;   // index of the push
    size_t shard;  // index of the shard in the variable's layout
  };
  // Everything that is pushed to one server. The request and the response list the slices in the
  // same order.
  struct ServerBatch {
    PushRequest body;
    std::vector<at::Tensor> tensors;  // for each slice its row ids, if it has any, and its values
    std::vector<Slice> slices;
    bool by_rows = false;  // true if some slices are rows with ids
  };

  // Adds the slices of one update to the batches of their servers.
  absl::Status add(const PsPush& push);

  std::vector<size_t> shards_;          // number of shards of each push's variable
  std::map<int, ServerBatch> batches_;  // by server
  uint64_t bytes_ = 0;
};

}  // namespace trireme::internal
