#pragma once

#include <string>
#include <vector>

#include "trireme/function/variable.h"

namespace torch::nn {
class Module;
}

namespace trireme {

// Makes a module's parameters and buffers variables, named by their path ("fc1.weight"), with the
// given name before it. Optimizers do this with the module that they are made for. Doing it again
// changes nothing. A function that is captured knows the module's training mode: train() and
// eval() lead to graphs of their own.
std::vector<Variable> track(torch::nn::Module& module, const std::string& name = "");

// For torch::nn's holders, as `Linear` and `Net` made by TORCH_MODULE, and for shared pointers.
template <typename Holder>
  requires requires(Holder& holder) { *holder; }
std::vector<Variable> track(Holder holder, const std::string& name = "") {
  return track(static_cast<torch::nn::Module&>(*holder), name);
}

}  // namespace trireme
