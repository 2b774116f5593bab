#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/ps/server_request.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// A pull of any number of variables, split by the servers that hold their shards: makes a request
// for each server and assembles the results from the responses. Serves one pull. Not thread-safe.
class ShardedPull {
 public:
  // Fails if the ids of some pull are not rows of its variable.
  static absl::StatusOr<ShardedPull> split(std::vector<PsPull> pulls);

  // Size of the tensors of all responses.
  uint64_t bytes() const { return bytes_; }
  // True if the response of some server may be larger than a frame.
  bool has_large_response() const;

  // Returns one request for each server, in the order of the servers. With `in_place`, large slices
  // of sharded variables are received where they belong in the results.
  std::vector<ServerRequest> make_requests(bool in_place);

  // Returns the tensors in the order of the pulls. `responses` are in the order of the requests.
  // Called once.
  absl::StatusOr<std::vector<at::Tensor>> assemble(const std::vector<Message>& responses);

 private:
  // The contribution of one shard to one result.
  struct Slice {
    size_t pull;
    size_t shard;
    std::vector<int64_t> positions;  // of rows in the result; empty: see ShardRows
  };
  // Everything that one server is asked for. The request and the response list the slices in turn.
  struct ServerBatch {
    PullRequest body;
    std::vector<at::Tensor> ids;
    std::vector<TensorShape> shapes;  // of the slices
    std::vector<Slice> slices;
    bool by_rows = false;  // true if some slices are rows with ids
  };

  absl::Status add(size_t pull);
  at::Tensor& result(size_t pull);
  // Returns the place of a slice of a whole variable in the result.
  at::Tensor place_of(const Slice& slice);
  // Null if nothing of the response can be received in place.
  Destination destination(const ServerBatch& batch);

  std::vector<PsPull> pulls_;
  std::vector<TensorShape> result_shapes_;
  std::vector<at::Tensor> results_;     // undefined until they are known
  std::map<int, ServerBatch> batches_;  // by server
  uint64_t bytes_ = 0;
};

}  // namespace trireme::internal
