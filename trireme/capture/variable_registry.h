#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/capture/aggregation.h"
#include "trireme/capture/variable_holders.h"
#include "trireme/cluster/device_spec.h"

// The process-wide registry of variables. A capture asks it once, at its start, which tensors of
// the program are variables. All functions are thread-safe.
namespace trireme::internal {

class VariableBackend;

// One variable. Everything except the tensor's contents, the backend's state, `holders` and
// `replays` stays as it was made.
struct VariableRecord {
  std::string name;  // unique among the live variables of the process
  at::Tensor tensor;
  bool trainable = true;
  Aggregation aggregation = Aggregation::kNone;
  std::string slot_of;  // for an optimizer's state, the name of the variable it belongs to
  // Device named by the scopes in which it was made, or the device of the variable that it belongs
  // to; empty for none.
  std::string device;
  std::string device_scopes;                 // names of those scopes, for explanations
  std::shared_ptr<VariableBackend> backend;  // null if it lives in the program or on `device`
  // Device of the backend that the scopes name; `device` is empty then.
  DeviceSpec backend_device;
  std::shared_ptr<void> backend_state;  // state that the backend keeps with it
  // Sessions that hold the contents. None for a variable with a backend, which sessions reject.
  VariableHolders holders;
  // Number of replays that wrote it. A capture that runs meanwhile uses it to tell their writes
  // from hidden writes of its own step.
  std::atomic<uint64_t> replays = 0;

  // Returns true if `device` names a job or a task, so that the variable lives outside of the
  // program.
  bool is_remote() const;
};

// Description of a variable to add. See VariableRecord for the fields.
struct NewVariable {
  std::string name;  // gets a suffix ("w_1") if the name is taken
  at::Tensor tensor;
  bool trainable = true;
  std::string slot_of;
  Aggregation aggregation = Aggregation::kNone;
  // The backend, or null for the program; the one of the BackendScope around it if not set.
  std::optional<std::shared_ptr<VariableBackend>> backend = {};
};

// Makes a tensor a variable, or returns the variable that it already is. It stays one as long as
// the caller, or another holder, keeps the record.
std::shared_ptr<VariableRecord> add_variable(NewVariable variable);
// Like add_variable(), but the tensor stays a variable as long as anything else holds the tensor.
// For the parameters and buffers of a module.
std::shared_ptr<VariableRecord> add_externally_owned(NewVariable variable);
// Returns the variable that a tensor is; null if it is not one.
std::shared_ptr<VariableRecord> find_variable(const at::Tensor& tensor);
// Returns all variables that are still held.
std::vector<std::shared_ptr<VariableRecord>> live_variables();

// Returns an empty string if no session holds the contents of the variable. Otherwise names the
// sessions, or the containers that closed sessions left it in: "the session at grpc://HOST:PORT, on
// /job:worker/task:0". The tensor in the program is stale then. Does not look at backends.
std::string held_elsewhere(const VariableRecord& variable);

}  // namespace trireme::internal
