#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/operators/call.h"
#include "tests/fuzz/operators/spoil.h"

// Runs one node, whose arguments may be spoiled, as a server does: the node is compiled and
// replayed as part of a graph. Faults end the process; everything else that is wrong is returned.
namespace trireme::fuzz {

struct CheckOptions {
  bool without_guards = false;  // leaves out what protects kernels, to see that it is missed
  uint64_t seed = 0;            // of contents
  bool at_end = true;           // blocks end at an unmapped page; false: they begin at one
};

struct Verdict {
  bool accepted = false;  // the operator ran; false: it gave an error
  std::string error;
  std::string finding;  // empty: nothing is wrong
};

// Runs the node twice on memory with different former contents and compares.
Verdict check_call(const Call& call, const std::vector<Spoil>& spoils, const CheckOptions& options);

}  // namespace trireme::fuzz
