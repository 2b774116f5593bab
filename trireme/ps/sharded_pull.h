#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/ps_variable.h"
#include "trireme/ps/server_request.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/message.h"
#include "trireme/rpc/shared_region.h"

namespace trireme::internal {

// Splits a pull of any number of variables by the servers that hold their shards: makes a request
// for each server and assembles the results from the responses. Used for one pull. Not thread-safe.
class ShardedPull {
 public:
  // Fails if the ids of some pull are not rows of its variable.
  static absl::StatusOr<ShardedPull> split(std::vector<PsPull> pulls);

  // Returns the size of the tensors in all responses.
  uint64_t bytes() const { return bytes_; }
  // Returns true if the response of some server may be larger than a frame.
  bool has_large_response() const;

  // Returns true if all variables are pulled whole and no response is larger than a frame.
  bool is_small_and_whole() const;
  // Returns the handles that a server is asked for; null if it is not asked.
  const google::protobuf::RepeatedField<uint64_t>* handles(int server) const;
  // Returns the number of servers that are asked.
  size_t servers() const { return batches_.size(); }

  // Returns one request for each server, in the order of the servers. Servers for which `shares`
  // returns true write large slices straight into the results, in shared memory. With `in_place`,
  // large slices of other sharded variables are received where they belong in the results.
  std::vector<ServerRequest> make_requests(bool in_place, const std::function<bool(int)>& shares);

  // Returns the versions of the shards that were read, in the order of the pulls. `responses` are
  // in the order of the requests.
  absl::StatusOr<std::vector<ShardVersions>> versions(const std::vector<Message>& responses) const;
  // Returns the tensors in the order of the pulls. `responses` are in the order of the requests.
  // Called once.
  absl::StatusOr<std::vector<at::Tensor>> assemble(const std::vector<Message>& responses);

 private:
  // The contribution of one shard to one result.
  struct Slice {
    size_t pull;                     // index of the pull
    size_t shard;                    // index of the shard in the variable's layout
    std::vector<int64_t> positions;  // positions of the rows in the result, as in ShardRows
  };
  // Everything that one server is asked for. The request and the response list the slices in the
  // same order.
  struct ServerBatch {
    PullRequest body;
    std::vector<at::Tensor> ids;      // row ids of the slices that are rows
    std::vector<TensorShape> shapes;  // shape of each slice
    std::vector<Slice> slices;
    bool by_rows = false;  // true if some slices are rows with ids
  };

  // Adds the slices of one pull to the batches of their servers.
  absl::Status add(size_t pull);
  // Returns the result of a pull, and allocates it if it does not exist yet.
  at::Tensor& result(size_t pull);
  // Returns the place of a slice of a whole variable in the result.
  at::Tensor place_of(const Slice& slice);
  // Allocates results in a shared region: those of whole variables with a large slice whose servers
  // all share memory. Does nothing if they are too small to be worth it, or without memory for
  // them.
  void share_results(const std::function<bool(int)>& shares);
  // Returns the places of the large slices that belong to results in the shared region, or to other
  // results of sharded variables, by the tensor of the response.
  std::map<size_t, at::Tensor> places(const ServerBatch& batch, bool shared);
  // Moves a result out of the shared region if one of its slices was not received in its place: a
  // server may still be writing there.
  void leave_region(const ServerBatch& batch, const std::vector<at::Tensor>& received);

  std::vector<PsPull> pulls_;
  std::vector<TensorShape> result_shapes_;
  std::vector<at::Tensor> results_;       // undefined until they are allocated or received
  std::shared_ptr<SharedRegion> region_;  // memory of some results; null for none
  std::vector<bool> in_region_;           // true for results in the region
  std::map<int, ServerBatch> batches_;    // by server
  uint64_t bytes_ = 0;
};

}  // namespace trireme::internal
