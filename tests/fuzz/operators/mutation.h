#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/operators/call.h"

// Changes that turn valid arguments into those of a malicious graph.
namespace trireme::fuzz {

struct Mutation {
  size_t argument;
  int item;          // index in a list of tensors; -1 for the argument itself
  std::string kind;  // "expanded", "int_min", …

  std::string text() const;  // "2:expanded", "0.1:empty"
};

// Returns every mutation of one argument that makes sense for its type.
std::vector<Mutation> mutations_of(const c10::OperatorHandle& op, const Arguments& arguments);

void apply(const Mutation& mutation, Arguments& arguments);

}  // namespace trireme::fuzz
