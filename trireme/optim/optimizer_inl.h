#pragma once

// The templates of optimizer.h, which includes this file.

#include <tuple>

#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"

namespace trireme::internal {

// The option structs are known to programs that include them. So the same code serves all of them,
// and asks each for the options that it has.
template <typename Options, typename Torch>
Options from_torch(const Torch& torch) {
  Options options;
  options.lr = torch.lr();
  options.weight_decay = torch.weight_decay();
  if constexpr (requires { options.eps; }) options.eps = torch.eps();
  if constexpr (requires { options.momentum; }) options.momentum = torch.momentum();
  if constexpr (requires { options.amsgrad; }) options.amsgrad = torch.amsgrad();
  if constexpr (requires { options.beta1; }) {
    std::tie(options.beta1, options.beta2) = torch.betas();
  }
  if constexpr (requires { options.alpha; }) {
    options.alpha = torch.alpha();
    options.centered = torch.centered();
  }
  if constexpr (requires { options.lr_decay; }) {
    options.lr_decay = torch.lr_decay();
    options.initial_accumulator = torch.initial_accumulator_value();
  }
  if constexpr (requires { options.nesterov; }) {
    options.nesterov = torch.nesterov();
    if (torch.dampening() != 0) {
      throw Error(ErrorCode::kUnimplemented,
                  "tr::Sgd has no dampening; make torch::optim::SGDOptions with dampening(0)");
    }
  }
  return options;
}

}  // namespace trireme::internal
