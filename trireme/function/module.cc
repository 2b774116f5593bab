#include "trireme/function/module.h"

#include <torch/nn/module.h>

#include "trireme/capture/variable_registry.h"
#include "trireme/function/module_states.h"

namespace trireme {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

std::vector<Variable> track(torch::nn::Module& module, const std::string& name) {
  internal::watch_module(module);
  std::vector<Variable> variables;
  for (const auto& parameter : module.named_parameters()) {
    variables.push_back(internal::Access<Variable>::make(internal::add_externally_owned(
        {join(name, parameter.key()), parameter.value(), /*trainable=*/true, ""})));
  }
  for (const auto& buffer : module.named_buffers()) {
    if (!buffer.value().defined()) continue;
    variables.push_back(internal::Access<Variable>::make(internal::add_externally_owned(
        {join(name, buffer.key()), buffer.value(), /*trainable=*/false, ""})));
  }
  return variables;
}

}  // namespace trireme
