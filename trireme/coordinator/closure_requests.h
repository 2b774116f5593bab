#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/element_account.h"
#include "trireme/rpc/message.h"

// Makes the requests that a coordinator sends to workers (closures.proto).
namespace trireme::internal {

// Makes a request that registers `function` and drops the functions with the ids in `dropped`.
Message register_request(const ClosureFunction& function, const std::vector<uint32_t>& dropped);

struct ResourceRequest {
  uint64_t coordinator = 0;
  int worker = 0;                      // Index of the worker whose iterator is to be created.
  std::vector<uint64_t> dropped = {};  // Ids of resources that no closure draws from any more.
};
// Makes a request that creates a worker's iterator. Returns an error if there is none.
absl::StatusOr<Message> create_request(const ResourceRequest& request,
                                       const ElementAccount& account);

struct RunRequest {
  Message message;
  bool large_response = false;  // True if the answer may be larger than a frame.
};
// Number of a batch, and of the one before it that is not answered; 0 for none.
struct BatchNumber {
  uint64_t batch = 0;
  uint64_t after = 0;
};
// Makes a request that runs `closures`, which have elements allotted, as one batch.
RunRequest run_request(uint64_t coordinator, uint64_t watermark, BatchNumber number,
                       const std::vector<ClosurePtr>& closures);

}  // namespace trireme::internal
