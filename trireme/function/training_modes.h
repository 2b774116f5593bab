#pragma once

#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// From now on the mode of this module's parts counts.
void watch_training_mode(torch::nn::Module& module);

// Which parts of the watched modules train and which evaluate. A C++ flag that decides what a
// function does, and so a part of its signature.
class TrainingModes {
 public:
  static TrainingModes now();
  // Whether the modules are as they were. Modules that came or went since do not count.
  bool still_hold() const;

 private:
  struct Modes {
    std::weak_ptr<torch::nn::Module> root;
    std::shared_ptr<const std::vector<const torch::nn::Module*>> parts;
    std::string training;
  };
  std::vector<Modes> modules_;
};

}  // namespace trireme::internal
