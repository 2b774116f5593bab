#pragma once

#include <string>

namespace trireme::internal {

// The parts of LibTorch that the program called, by the call stack. An operator that a capture
// rejects is often not the one that the program wrote: one_hot() calls _local_scalar_dense().
struct CallSite {
  std::string op;         // outermost operator: "one_hot"; empty if there is none
  std::string module;     // innermost module of torch::nn: "Dropout"; empty if there is none
  std::string optimizer;  // optimizer of torch::optim whose step() runs: "SGD"; empty if none does
};

// Looks at the stack of the calling thread. Takes some ten microseconds, or milliseconds for a
// stack that it sees for the first time. Finds what LibTorch's libraries export; a frame that the
// compiler optimised away is not found.
CallSite current_call_site();

}  // namespace trireme::internal
