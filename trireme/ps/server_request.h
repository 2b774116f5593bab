#pragma once

#include "trireme/rpc/call.h"
#include "trireme/rpc/message.h"
#include "trireme/tensor/codec.h"

namespace trireme::internal {

// A request to one parameter server. Each operation of PsClient makes at most one per server.
struct ServerRequest {
  int server = 0;  // index of the ps task
  Message message;
  Destination into = nullptr;  // memory for the response's tensors; null for new memory
  CallSharing shared = {};     // use of memory that is shared with the server
};

}  // namespace trireme::internal
