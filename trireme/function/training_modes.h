#pragma once

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// Makes the training modes of the module and of its submodules part of TrainingModes from now on.
// Does nothing for a module that no shared pointer owns. Thread-safe.
void watch_training_mode(torch::nn::Module& module);

// A snapshot of which watched modules are in training mode and which in evaluation mode. The mode
// is a flag in C++ that decides which operators a function calls, so it is part of the signature of
// a captured graph. Holds the modules weakly.
class TrainingModes {
 public:
  // Returns the current modes of all watched modules.
  static TrainingModes now();
  // Returns true if all modules of the snapshot still have the same modes. Ignores modules that
  // were added or destroyed since.
  bool are_current() const;

 private:
  struct Modes {
    std::weak_ptr<torch::nn::Module> root;
    // The root and its submodules. Valid while the root lives.
    std::shared_ptr<const std::vector<const torch::nn::Module*>> parts;
    std::string training;  // one letter for each part: 't' in training mode, 'e' in evaluation mode
  };
  std::vector<Modes> modules_;
};

}  // namespace trireme::internal
