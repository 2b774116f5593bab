#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "trireme/capture/recorder.h"

namespace trireme::internal {

// State of one operator on its way through the stages of the recorder (recorder_call.cc).
struct Recorder::Call {
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op(op), stack(stack) {}

  const c10::OperatorHandle& op;
  torch::jit::Stack* stack;
  std::vector<c10::IValue> originals;  // the arguments as the step passed them
  std::vector<int> written;            // indices of the arguments that the call writes to
  // Memory behind the arguments. Memory that is both read and written is in the second list only.
  std::vector<Memory*> read_memories, written_memories;
  std::vector<Memory*> result_memories;
  std::vector<size_t> read_arguments;       // for each read memory, the argument that it came with
  std::vector<uint64_t> read_fingerprints;  // for each read memory, taken before the kernel ran
  // Variables (views of them included) and the views of scratch copies that replaced them.
  std::vector<std::pair<at::Tensor, at::Tensor>> substituted;
  std::vector<std::pair<int, Geometry>> written_geometries;  // from before the kernel ran
  proto::Node node;
  bool made_value = false;       // true once a result was added to the graph as a new value
  bool takes_no_tensor = false;  // true if no argument is, or contains, a defined tensor
  bool factory = false;          // true if the call takes no tensor and draws no random number

  c10::ArrayRef<c10::IValue> arguments() const { return originals; }
};

// Calls `visit` with each defined tensor that an argument is or contains.
void for_each_tensor(const c10::IValue& argument,
                     const std::function<void(const at::Tensor&)>& visit);

}  // namespace trireme::internal
