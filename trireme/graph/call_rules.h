#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "trireme/graph/guard.h"

// Rules for the arguments of an operator. They are enforced before its kernel sees the arguments,
// so that no argument makes the kernel access memory outside of its tensors.
//
// A kernel that ignores strides reads as many contiguous elements as its argument has. That stays
// inside of the argument's memory unless elements overlap: in an expanded tensor, n elements may
// share the memory of one. Therefore
//   - a write to a tensor whose elements overlap is rejected;
//   - an overlapping argument that such a kernel reads is made contiguous first;
//   - so are one-dimensional tensors and indices with gaps: the kernel would stay in their memory,
//     but read numbers in the gaps that the guard has not seen.
// All other arguments reach their kernel unchanged.
namespace trireme::internal {

struct CallRules {
  Guard guard = nullptr;        // the check for this operator; null if it needs none
  std::vector<int> written;     // positions of the arguments that some call writes to
  std::vector<int> contiguous;  // positions of the arguments whose strides the kernel ignores
  std::vector<int> fresh;       // positions of the results that share no memory with an argument
};

// Returns the rules of an operator. A plan keeps those of each node.
CallRules call_rules(const c10::OperatorHandle& op);

// Enforces the rules on the arguments of a call; replaces an argument that must be contiguous.
// Must be called before each call of an operator, in captures as well as in replays: the layout of
// a result follows from the layout of the arguments. Throws Error if a rule is violated; the
// message says why.
void enforce(const CallRules& rules, std::span<c10::IValue> arguments);

// Copies each fresh result whose memory is larger than its elements. Some kernels return part of a
// larger block and never write the rest, which another view of the result would expose.
void trim_results(const CallRules& rules, std::span<c10::IValue> results);

}  // namespace trireme::internal
