#pragma once

#include <c10/core/StorageImpl.h>

#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::internal {

// Makes the state of the module and of its submodules part of ModuleStates from now on. Throws
// Error for a module that no shared pointer owns: nothing would tell when it is gone. Thread-safe.
void watch_module(torch::nn::Module& module);

// Returns true if a watched module has dropout with this rate and is in this mode. Thread-safe.
bool is_watched_dropout(double rate, bool training);

// A snapshot of the state of all watched modules that decides which operators a function calls:
// training modes, submodules, parameters and buffers, which of them need gradients, and dropout
// rates. It is
// part of the signature of a captured graph. Holds the modules weakly.
class ModuleStates {
 public:
  // Returns the current states of all watched modules.
  static ModuleStates now();
  // Returns true if all modules of the snapshot still have the same states. Ignores modules that
  // were added or destroyed since.
  bool are_current() const;
  // Returns true if a module of the snapshot is gone and one of these storages belonged to it: the
  // program uses another module in its place.
  bool lost_module_with(
      const std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& storages) const;

 private:
  struct Tree;
  std::vector<std::shared_ptr<const Tree>> trees_;
};

}  // namespace trireme::internal
