#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/capture/aggregation.h"

// Which tensors of this program are variables. A capture asks it once, at its start.
namespace trireme::internal {

class VariableBackend;

struct VariableRecord {
  std::string name;
  at::Tensor tensor;
  bool trainable = true;
  Aggregation aggregation = Aggregation::kNone;
  std::string slot_of;        // for an optimizer's state: the variable that it belongs to
  std::string device;         // as far as the scopes that it was made in name it
  std::string device_scopes;  // which they were
  std::shared_ptr<VariableBackend> backend;  // null: the program, or the device
  std::shared_ptr<void> backend_state;       // what the backend keeps with it
  // Counts the replays that wrote it, so that a capture can tell their writes from hidden ones.
  std::atomic<uint64_t> replays = 0;

  bool is_remote() const;  // lives on a device of a task, not in the program
};

struct NewVariable {
  std::string name;
  at::Tensor tensor;
  bool trainable = true;
  std::string slot_of;
  bool in_program = false;  // whatever backend it is made in
  Aggregation aggregation = Aggregation::kNone;
};

// Makes the tensor a variable, or finds the one that it is already. Thread-safe, as are all here.
std::shared_ptr<VariableRecord> add_variable(NewVariable variable);
// As above, and keeps it a variable for as long as anybody else holds the tensor: a module's
// parameters and buffers.
std::shared_ptr<VariableRecord> add_owned_elsewhere(NewVariable variable);
std::shared_ptr<VariableRecord> find_variable(const at::Tensor& tensor);
std::vector<std::shared_ptr<VariableRecord>> live_variables();

}  // namespace trireme::internal
