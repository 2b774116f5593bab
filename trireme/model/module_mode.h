#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace trireme::internal {

// Puts a module into training or evaluation mode while it exists. A module that is in this mode is
// left as it is, so that a part which the program has set to evaluation, as frozen layers are,
// stays so in training. Sets all submodules back to their own modes. Not thread-safe.
class ModuleMode {
 public:
  ModuleMode(torch::nn::Module& module, bool training) {
    if (module.is_training() == training) return;
    for (const auto& part : module.modules()) before_.emplace_back(part, part->is_training());
    module.train(training);
  }
  ~ModuleMode() {
    // Modules come before their submodules, which train() sets too.
    for (const auto& [module, training] : before_) module->train(training);
  }

  ModuleMode(const ModuleMode&) = delete;
  ModuleMode& operator=(const ModuleMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

}  // namespace trireme::internal
