#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/operators/call.h"
#include "tests/fuzz/operators/mutation.h"

// Runs one node with mutated arguments as a server does: the node is compiled and replayed as a
// graph. A crash ends the process; any other finding is returned.
namespace trireme::fuzz {

struct CheckOptions {
  bool without_guards = false;  // runs without the checks that protect kernels
  uint64_t seed = 0;            // seed of the tensors' contents
  bool at_end = true;           // true: blocks end at an unmapped page; false: they begin at one
};

struct Verdict {
  bool accepted = false;  // true if the operator ran, false if it gave an error
  std::string error;
  std::string finding;  // description of what is wrong; empty if nothing is
};

// Runs the node twice, with new memory filled with different bytes, and compares the results.
Verdict check_call(const Call& call, const std::vector<Mutation>& mutations,
                   const CheckOptions& options);

}  // namespace trireme::fuzz
