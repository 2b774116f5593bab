#pragma once

#include <functional>
#include <memory>
#include <stop_token>

#include "trireme/rpc/call.h"
#include "trireme/rpc/fault_injector.h"

namespace trireme::internal {

// Sends a request. May be called more than once. The token cancels this sending.
using Send = std::function<void(std::stop_token, OnResponse)>;

// Sends a request with the given faults. Calls back exactly once. If the request or the response is
// lost, calls back at the deadline.
void send_with_fault(const std::shared_ptr<FaultInjector>& injector, const Fault& fault,
                     Time deadline, Send send, OnResponse on_response);

}  // namespace trireme::internal
