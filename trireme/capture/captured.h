#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/capture/fingerprint.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/graph/plan.h"

// Options and result of a capture.
namespace trireme::internal {

struct CaptureOptions {
  std::string name;   // name of the function, for errors
  uint64_t seed = 0;  // seed of the step's random numbers
  uint64_t step = 0;  // number of the step, from which its random numbers follow too
  // Changes the numbers in arguments and variables before the step runs: 0 leaves them, 1 and 2
  // change them in two different ways (scratch.h). If the program reads a number from them and uses
  // it as a constant, captures with different perturbations give different graphs.
  int perturbation = 0;
  // True if the step was captured before. Gradients that an earlier step left are then planted in
  // the variables, so that a step that adds to them is rejected.
  bool repeated = false;
  // True to lock the memory of arguments and results while the program's own code runs, so that a
  // step that reads them without an operator is rejected.
  bool lock_memory = false;
  // Variables whose memory in the program is locked as well. No other thread may use them.
  std::vector<std::shared_ptr<VariableRecord>> lock_variables = {};
  // Returns true if train() and eval() of a dropout module with this rate and mode are noticed.
  // Null if the step may use any.
  std::function<bool(double rate, bool training)> is_known_dropout = nullptr;
};

// A tensor object of the program, which is not kept alive.
using TensorObject = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A tensor from outside of the step that became a constant of the graph. Does not keep the tensor
// alive.
struct ExternalTensor {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  uint64_t fingerprint = 0;  // quick_fingerprint() of the storage during the capture
  // Version counter of the tensor; nullopt for a tensor made in inference mode, which has none.
  std::optional<c10::VariableVersion> version;
  uint32_t captured_version = 0;
  bool borrowed = false;  // true for memory that LibTorch did not allocate: from_blob()

  // Returns true if the graph is stale: the tensor is gone, so that the program uses another in its
  // place, or its contents have changed. The version counter notices operators, the fingerprint
  // also writes through `.data()` and pointers.
  bool changed() const {
    if (version && version->current_version() != captured_version) return true;
    const auto alive = storage.lock();
    return !alive || quick_fingerprint(*alive) != fingerprint;
  }
};

// Result of one capture.
struct Captured {
  std::shared_ptr<GraphData> graph;
  std::vector<std::shared_ptr<VariableRecord>> variables;  // in the order of the graph's variables
  std::vector<ExternalTensor> externals;
  // Tensor objects of the program that the step used. One that is gone was replaced by another,
  // perhaps a slice of the same memory.
  std::vector<TensorObject> external_objects;
  // Arguments, results and variables of the run that was recorded. Replays are checked against
  // them.
  std::vector<at::Tensor> inputs, outputs;
  std::vector<at::Tensor> variables_before, variables_after;
};

}  // namespace trireme::internal
