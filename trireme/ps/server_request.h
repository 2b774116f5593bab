#pragma once

#include "trireme/rpc/message.h"
#include "trireme/tensor/codec.h"

namespace trireme::internal {

// A request to one of the parameter servers. A call of a client makes at most one for each server.
struct ServerRequest {
  int server = 0;  // index of the ps task
  Message message;
  Destination into = nullptr;  // memory for the tensors of the response; null: new memory
};

}  // namespace trireme::internal
