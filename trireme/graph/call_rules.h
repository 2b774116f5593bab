#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "trireme/graph/guard.h"

// Rules for the arguments of an operator, enforced before its kernel sees them, so that none of
// them leads the kernel out of its memory.
//
// A kernel that ignores strides walks over as many contiguous elements as its argument shows. That
// stays inside of the argument's memory unless elements overlap, as those of an expanded tensor do:
// n elements may then lie on one. So a write to memory that overlaps itself is refused, and an
// overlapping argument that such a kernel reads is made contiguous first, as are rows and indices
// with gaps: the kernel would stay in their memory, but read other numbers than the guard has seen.
// Everything else reaches its kernel as it is.
namespace trireme::internal {

struct CallRules {
  Guard guard = nullptr;        // null if the operator needs none
  std::vector<int> written;     // the arguments that some call writes to
  std::vector<int> contiguous;  // the arguments whose strides the kernel ignores
  std::vector<int> fresh;       // the results that share memory with no argument
};

CallRules call_rules(const c10::OperatorHandle& op);

// To be called by whoever runs an operator, when capturing and when replaying alike: the layout of
// a result follows from its arguments. Throws Error with the argument at fault.
void enforce(const CallRules& rules, std::span<c10::IValue> arguments);

// Gives each result memory that holds its elements and nothing else. Some kernels return a part of
// a larger block whose rest they never wrote, and which another view of the result would show.
void trim_results(const CallRules& rules, std::span<c10::IValue> results);

}  // namespace trireme::internal
