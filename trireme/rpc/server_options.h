#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/observe/metrics.h"
#include "trireme/rpc/credentials.h"
#include "trireme/rpc/frame.h"
#include "trireme/rpc/limits.h"

namespace trireme {
namespace internal {
class ServingQueues;  // rpc/call_queue.h
}

struct RpcServerOptions {
  std::string address;  // host:port; port 0 takes a free one
  std::string task;     // who this is, for errors and for callers that ask
  uint64_t incarnation = 0;
  Credentials credentials = Credentials::loopback();
  int threads = default_rpc_threads();  // that take calls; handlers run on them
  ServerLimits limits;
  Metrics* metrics = nullptr;  // must outlive the server; none: not counted
  // Where calls of channels that have these, too, end.
  std::shared_ptr<internal::ServingQueues> serving = nullptr;
};

}  // namespace trireme
