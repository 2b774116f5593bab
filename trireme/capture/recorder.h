#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/capture/captured.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/value_table.h"
#include "trireme/graph/graph_builder.h"

namespace trireme::internal {

// Called with each recorded operator after it ran, if not null. The operator fuzzer sets it to
// collect calls (tests/fuzz/operators). Must be set before the first capture.
using CallObserver = void (*)(const c10::OperatorHandle&, c10::ArrayRef<c10::IValue>);
extern CallObserver call_observer;

// Records one run of a step as a graph. Sees each operator before its kernel: finds the values that
// its arguments are, decides whether it may be recorded, runs the kernel, and adds its results to
// the graph as values. Not thread-safe.
//
// Calls come in this order: add_input() for each argument, the step with the recorder as its
// thread's hook, set_outputs(), finish().
class Recorder final : public OperatorHook {
 public:
  explicit Recorder(const CaptureOptions& options);
  ~Recorder();

  const std::string& name() const { return options_.name; }

  // Adds an input to the graph and returns the copy that the step gets as its argument.
  at::Tensor add_input(const at::Tensor& original);
  // Marks a gradient as left by an earlier step, so that a step that uses it is rejected.
  void add_leftover_gradient(const at::Tensor& gradient);
  // Message of the error for code of the step that reads or writes locked memory.
  const std::string& lock_message() const { return lock_message_; }

  // Runs and records one operator and leaves its results on the stack. Throws Error to reject it.
  void run(const c10::OperatorHandle& called, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override;

  // Makes the results of the step the outputs of the graph. Returns them detached, since autograd's
  // history holds most tensors of the step. A returned variable is replaced by its scratch copy.
  std::vector<at::Tensor> set_outputs(const std::vector<at::Tensor>& outputs);
  // A variable and the gradient that the step left in its `.grad`.
  using LeftGradients = std::vector<std::pair<std::string, at::Tensor>>;
  // Rejects the step if it left gradients and nothing in it uses them: they were meant for an
  // optimizer outside of the step, which would not get those of a replay. Called after
  // set_outputs().
  void check_left_gradients(const LeftGradients& left);
  // Checks that the step changed no memory without an operator and that no tensor of it outlives
  // it, then returns the graph. Must be called when all tensors of the step except `outputs` are
  // gone.
  Captured finish(std::vector<at::Tensor> outputs);

 private:
  // A variable that the step uses.
  struct VariableUse {
    std::shared_ptr<VariableRecord> record;
    at::Tensor before;   // copy of the contents at the start, after the perturbation
    at::Tensor scratch;  // copy that kernels read and write
    // State of the variable itself when the step first used it, to detect hidden writes.
    const c10::StorageImpl* live_storage;
    uint64_t live_fingerprint, replays;
  };
  // Memory that an operator of the graph reads, and memory that it makes or writes.
  struct Flow {
    std::vector<const Memory*> from, to;
  };
  struct Call;

  // Functions that map tensors to values of the graph (recorder_values.cc).
  int64_t value_of(const at::Tensor& tensor);
  uint32_t value_in(Memory& memory, const at::Tensor& tensor);
  Memory& memory_of(const at::Tensor& tensor);
  Memory& adopt_variable(const std::shared_ptr<VariableRecord>& record);
  Memory& adopt_external(const at::Tensor& tensor);
  void handle_hidden_write(Memory& memory, const at::Tensor& tensor);
  at::Tensor substitute(const at::Tensor& tensor);

  // The stages of one operator (recorder_call.cc). Checks are in recorder_checks.cc.
  void check_may_record(Call& call);
  void resolve_memories(Call& call);
  void encode(Call& call);
  void execute(Call& call, c10::DispatchKeySet keys);
  void record_results(Call& call);
  bool add_result_value(const at::Tensor& tensor, Call& call, int64_t* value);
  void resolve_dtype(Call& call);
  void annotate(Call& call);
  void request_device(proto::Node& node);
  std::string module_of(const Memory& memory) const;

  // Checks (recorder_checks.cc).
  bool drops_leftover_gradient(const Call& call);
  [[noreturn]] void refuse_leftover_gradient(const Call& call) const;
  void check_variable_write(const Memory& memory) const;
  void check_writes(Call& call);
  void check_alias(const Call& call, size_t result, const at::Tensor& tensor);
  void note_flow(const Call& call);
  void set_locked(const Call& call, bool locked);
  void set_locked(const Memory& memory, bool locked) const;
  void unlock_all() const;
  [[noreturn]] void refuse(const std::string& why) const;

  const CaptureOptions options_;
  const std::string lock_message_;
  GraphBuilder builder_;
  ValueTable table_;
  at::Generator generator_;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<VariableRecord>> variable_storages_;
  std::unordered_map<std::string, std::string> sharing_;  // pairs of variables in one storage
  std::vector<VariableUse> variables_;
  std::vector<ExternalTensor> externals_;
  std::unordered_map<const c10::TensorImpl*, TensorObject> external_objects_;
  std::vector<Flow> flows_;  // one for each node, in order
  std::vector<const Memory*> output_memories_;
  std::vector<at::Tensor> inputs_;
  // Maps autograd's sequence number of a function to the index of the node that it differentiates.
  std::unordered_map<uint64_t, int> forward_nodes_;
  uint64_t last_sequence_ = 0;  // autograd's next sequence number when it was last looked at
  std::string current_op_;      // operator that errors name; empty for none
};

}  // namespace trireme::internal
