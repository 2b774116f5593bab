#pragma once

#include <string>
#include <vector>

#include "trireme/function/variable.h"

namespace torch::nn {
class Module;
}

namespace trireme {

// Makes the parameters and buffers of a module variables and returns them. They are named by their
// path ("fc1.weight"), prefixed with `name` if it is not empty ("net.fc1.weight"). They stay
// variables as long as the module lives. Calling it again changes nothing. Optimizers call it for
// the module that they are made with.
//
// From then on the state of the module is part of the signature of captured functions: they use one
// graph after train() and another after eval(), and are captured again when a parameter is frozen
// or a submodule replaced. Call it again after a parameter or a submodule was replaced. Throws
// Error for a module that no shared pointer owns, whose state cannot be watched.
//
//   torch::nn::Linear net(3, 2);
//   tr::track(net, "net");  // variables "net.weight" and "net.bias"
std::vector<Variable> track(torch::nn::Module& module, const std::string& name = "");

// Does the same for a module holder, such as torch::nn::Linear or one made by TORCH_MODULE, and for
// a shared pointer to a module.
template <typename Holder>
  requires requires(Holder& holder) { *holder; }
std::vector<Variable> track(Holder holder, const std::string& name = "") {
  return track(static_cast<torch::nn::Module&>(*holder), name);
}

}  // namespace trireme
