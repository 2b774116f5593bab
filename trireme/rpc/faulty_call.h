#pragma once

#include <functional>
#include <memory>
#include <stop_token>

#include "trireme/rpc/call.h"
#include "trireme/rpc/fault_injector.h"

namespace trireme::internal {

// Sends a request; may be called more than once. The token cancels that sending.
using Send = std::function<void(std::stop_token, OnResponse)>;

// Sends with what the fault does to it. Calls back exactly once, at the latest at the deadline.
void send_with_fault(const std::shared_ptr<FaultInjector>& injector, const Fault& fault,
                     Time deadline, Send send, OnResponse on_response);

}  // namespace trireme::internal
