#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/data/iterator.h"
#include "trireme/data/used_numbers.h"
#include "trireme/function/variable.h"
#include "trireme/function/worker_values.h"
#include "trireme/optim/optimizer.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/train/checkpointed.h"

namespace trireme::internal {

class WorkerResource;

// A variable that is saved.
struct CheckpointedVariable {
  Variable variable;
  const Optimizer* optimizer = nullptr;  // Null if none of the objects trains it.
  std::vector<Variable> slots;           // Slots in the program's memory, in the rule's order.

  const VariableRecord& record() const { return *Access<Variable>::record(variable); }
  bool on_servers() const {
    return dynamic_cast<const ParameterServerBackend*>(record().backend.get()) != nullptr;
  }
  // Returns the update rule of the optimizer; empty without one.
  std::string rule() const;
  // Returns the names of the slots, wherever they are.
  std::vector<std::string> slot_names() const;
};

// An iterator that is saved: one of the program, or one of each worker.
struct CheckpointedIterator {
  std::string name;
  std::variant<std::shared_ptr<WorkerResource>, Iterator> source;

  bool per_worker() const { return source.index() == 0; }
  // Returns the dataset in readable form.
  std::string dataset() const;
  // Returns the positions, one per worker. No element may be drawn meanwhile. Throws Error.
  std::vector<SavedPosition> positions() const;
  // Continues from these positions. Throws Error.
  void restore(const std::vector<SavedPosition>& positions) const;
};

// The objects of a CheckpointManager, resolved into variables, each of them once, optimizers,
// iterators and texts. Immutable, and thread-safe therefore.
class CheckpointObjects {
 public:
  // Throws Error if the objects cannot be saved together.
  explicit CheckpointObjects(const std::vector<Checkpointed>& objects);

  CheckpointObjects(const CheckpointObjects&) = delete;
  CheckpointObjects& operator=(const CheckpointObjects&) = delete;

  const std::vector<CheckpointedVariable>& variables() const { return variables_; }
  const std::vector<std::unique_ptr<const Optimizer>>& optimizers() const { return optimizers_; }
  const std::vector<CheckpointedIterator>& iterators() const { return iterators_; }
  const std::vector<CheckpointedText>& texts() const { return texts_; }
  // Returns the parameter servers that hold some of the variables; null if there are none.
  const std::shared_ptr<ParameterServerBackend>& backend() const { return backend_; }
  // Returns the variables that are on parameter servers.
  std::vector<PsVariable> ps_variables() const;
  // Returns the workers that train the variables together, or without such variables those of the
  // strategy in whose scope the object was made; null if there is only this process.
  WorkerGroup* workers() const { return workers_; }

 private:
  CheckpointedVariable& add(const Variable& variable);
  void add(const Optimizer& optimizer);
  void add(const CheckpointedText& text);

  std::vector<CheckpointedVariable> variables_;
  std::unordered_map<const VariableRecord*, size_t> places_;  // Indices into variables_.
  std::vector<std::unique_ptr<const Optimizer>> optimizers_;
  std::vector<CheckpointedIterator> iterators_;
  std::vector<CheckpointedText> texts_;
  std::shared_ptr<ParameterServerBackend> backend_;
  std::shared_ptr<VariableBackend> scope_;  // Keeps the workers of a scope; null if not needed.
  WorkerGroup* workers_ = nullptr;
};

// A copy of the variables in the program's memory, with the state of their optimizers.
class ProgramCopy {
 public:
  // Copies now. Throws Error if a variable cannot be read.
  explicit ProgramCopy(const CheckpointObjects& objects);

  // Returns true if there is nothing to write.
  bool empty() const { return tensors_.empty(); }
  // Writes the copy to a file of the folder and adds the file and the variables to the manifest.
  absl::Status write(Files& files, const std::string& folder, Manifest& manifest) const;

 private:
  void add(const std::string& name, const at::Tensor& tensor);

  std::vector<at::Tensor> copies_;
  std::vector<TensorToSave> tensors_;     // Parallel to copies_.
  std::vector<SavedVariable> variables_;  // Each with one shard. Their tensors come in order.
};

}  // namespace trireme::internal
