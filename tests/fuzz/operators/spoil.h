#pragma once

#include <string>
#include <vector>

#include "tests/fuzz/operators/call.h"

// Changes that turn good arguments into those of a graph that was made to hurt.
namespace trireme::fuzz {

struct Spoil {
  size_t argument;
  int item;          // of a list of tensors; -1 for the argument itself
  std::string kind;  // "expanded", "int_min", …

  std::string text() const;  // "2:expanded", "0.1:empty"
};

// Every change of one argument that makes sense for it.
std::vector<Spoil> spoils_of(const c10::OperatorHandle& op, const Arguments& arguments);

void apply(const Spoil& spoil, Arguments& arguments);

}  // namespace trireme::fuzz
