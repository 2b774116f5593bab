#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/base/access.h"
#include "trireme/coordinator/per_worker_values.h"
#include "trireme/data/iterator.h"
#include "trireme/function/module.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"

namespace trireme {

// A state that the program itself describes by a text, such as a count or a list of figures.
//
//   tr::CheckpointedText{"epoch", [&] { return std::to_string(epoch); },
//                        [&](const std::string& text) { epoch = std::stoi(text); }}
struct CheckpointedText {
  // Name in the checkpoint: at most 256 bytes of printable UTF-8. Each text of a CheckpointManager
  // has its own.
  std::string name;
  // Returns the text. Called by the thread that saves, while training is held. The text must be
  // UTF-8, and all texts of a checkpoint have at most 16 MiB together.
  std::function<std::string()> save;
  // Sets the state. Called by the thread that restores, after all other objects were restored.
  std::function<void(const std::string& text)> restore;
};

// An object whose state a CheckpointManager saves and restores. Made implicitly, in the list that
// the manager takes. Shares the state of the object that it is made of.
class Checkpointed {
 public:
  // Stands for the parameters and buffers of a module, given by its holder or a shared pointer.
  // They become variables if they are not yet (module.h).
  template <internal::ModulePointer Module>
  Checkpointed(const Module& module) : object_(track(module)) {}
  // Stands for a variable.
  Checkpointed(const Variable& variable) : object_(std::vector<Variable>{variable}) {}
  // Stands for several variables.
  Checkpointed(std::vector<Variable> variables) : object_(std::move(variables)) {}
  // Stands for an optimizer: its variables, their slots, the update count and the learning rate.
  Checkpointed(const Optimizer& optimizer) : object_(optimizer) {}
  // Stands for the positions of the workers in their datasets.
  Checkpointed(const PerWorkerDataset& data) : object_(data) {}
  // Stands for the position of an iterator in this program.
  Checkpointed(const Iterator& iterator) : object_(iterator) {}
  // Stands for a state that the program describes itself.
  Checkpointed(CheckpointedText text) : object_(std::move(text)) {}

 private:
  friend struct internal::Access<Checkpointed>;
  using Object =
      std::variant<std::vector<Variable>, Optimizer, PerWorkerDataset, Iterator, CheckpointedText>;

  Object object_;
};

template <>
struct internal::Access<Checkpointed> {
  static const Checkpointed::Object& object(const Checkpointed& checkpointed) {
    return checkpointed.object_;
  }
};

}  // namespace trireme
