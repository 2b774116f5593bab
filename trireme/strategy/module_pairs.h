#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// A parameter or buffer of a distributed module, and that of a local module with the same name.
struct TensorPair {
  std::string name;
  at::Tensor distributed;
  at::Tensor local;
};

// Returns the pairs of two modules. Throws Error if the modules differ in structure.
std::vector<TensorPair> pair_tensors(const torch::nn::Module& distributed,
                                     const torch::nn::Module& local);

// Throws Error in a captured function, whose replays would not copy again. `call` is the name of
// the strategy's function that copies.
void check_outside_of_functions(const char* call);

}  // namespace trireme::internal
