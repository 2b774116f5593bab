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
class LaneTable;      // rpc/lane.h
class ServingQueues;  // rpc/call_queue.h
}  // namespace internal

// Options of an RpcServer.
struct RpcServerOptions {
  std::string address;       // host:port to listen on; port 0 for any free port
  std::string task;          // name of the server's task, for errors and for the hello
  uint64_t incarnation = 0;  // identity of this start of the task; drawn anew at each start
  Credentials credentials = Credentials::loopback();
  int threads = default_rpc_threads();  // number of threads that serve calls and run handlers
  ServerLimits limits;
  Metrics* metrics = nullptr;  // must outlive the server; null to count nothing
  // Lets channels with the same queues complete their calls on the server's threads
  // (ChannelOptions::serving). Null if the server makes no calls, or makes them on other threads.
  std::shared_ptr<internal::ServingQueues> serving = nullptr;
  // Gets the lanes that are made through the server's port. Null to refuse lanes.
  std::shared_ptr<internal::LaneTable> lanes = nullptr;
};

}  // namespace trireme
