#pragma once

#include <cstdint>
#include <vector>

#include "trireme/coordinator/closure.h"
#include "trireme/data/dataset.h"
#include "trireme/rpc/message.h"

// Requests that a coordinator sends to workers to have them run closures (closures.proto).
namespace trireme::internal {

// `dropped`: ids of functions of which there will be no closures any more.
Message register_request(const ClosureFunction& function, const std::vector<uint32_t>& dropped);

struct ResourceRequest {
  uint64_t coordinator = 0;
  uint64_t resource = 0;
  uint64_t seed = 0;
  std::vector<uint64_t> dropped = {};  // Ids of resources that no closure draws from any more.
};
Message create_request(const ResourceRequest& request, const Dataset& dataset);

struct RunRequest {
  Message message;
  bool large_response = false;  // True if the answer may be larger than a frame.
};
RunRequest run_request(uint64_t coordinator, uint64_t watermark,
                       const std::vector<ClosurePtr>& closures);

}  // namespace trireme::internal
