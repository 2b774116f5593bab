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

// Called with each operator that is recorded, after it ran, if set. Set before any capture, by the
// harvest of calls for the operator fuzzer (tests/fuzz/operators).
using CallObserver = void (*)(const c10::OperatorHandle&, c10::ArrayRef<c10::IValue>);
extern CallObserver call_observer;

// One capture under way. Sees each operator before its kernel, decides what its arguments are and
// whether it may be recorded, runs the kernel, and names its results. Used by one thread.
class Recorder final : public OperatorHook {
 public:
  explicit Recorder(const CaptureOptions& options);

  const std::string& name() const { return options_.name; }

  // Before the step: the copy that the step will see as its argument.
  at::Tensor add_input(const at::Tensor& original);
  void add_leftover_gradient(const at::Tensor& gradient);

  // Runs and records one operator, leaving its results on the stack. Throws Error to refuse it.
  void run(const c10::OperatorHandle& called, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override;

  // After the step: writes down what it gave. Returns it without autograd's history, which holds
  // most tensors of the step; of variables, what the step made of them.
  std::vector<at::Tensor> set_outputs(const std::vector<at::Tensor>& outputs);
  // After the step's tensors are gone, but for `outputs`: looks for traces that no operator told
  // of, then gives the graph.
  Captured finish(std::vector<at::Tensor> outputs);

 private:
  struct VariableUse {
    std::shared_ptr<VariableRecord> record;
    at::Tensor before, scratch;
    const c10::StorageImpl* live_storage;
    uint64_t live_fingerprint, replays;
  };
  struct Call;

  int64_t value_of(const at::Tensor& tensor);
  uint32_t value_in(Memory& memory, const at::Tensor& tensor);
  Memory& memory_of(const at::Tensor& tensor);
  Memory& adopt_variable(const std::shared_ptr<VariableRecord>& record);
  Memory& adopt_external(const at::Tensor& tensor);
  void settle_hidden_write(Memory& memory, const at::Tensor& tensor);
  at::Tensor substitute(const at::Tensor& tensor);

  void check_may_record(Call& call);
  void note_memories(Call& call);
  void encode(Call& call);
  void execute(Call& call, c10::DispatchKeySet keys);
  void check_writes(Call& call);
  void name_results(Call& call);
  void check_alias(const Call& call, size_t result, const at::Tensor& tensor);
  bool name_result(const at::Tensor& tensor, const Call& call, int64_t* value);
  void annotate(Call& call);
  void request_device(proto::Node& node);
  std::string module_of(const Memory& memory) const;
  [[noreturn]] void refuse(const std::string& why) const;

  const CaptureOptions options_;
  GraphBuilder builder_;
  ValueTable table_;
  at::Generator generator_;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<VariableRecord>> variable_storages_;
  std::unordered_map<std::string, std::string> sharing_;  // variables in one storage
  std::vector<VariableUse> variables_;
  std::vector<ExternalTensor> externals_;
  std::vector<at::Tensor> inputs_;
  std::unordered_map<uint64_t, int> forward_nodes_;  // autograd's sequence number to node
  uint64_t last_sequence_ = 0;
  std::string current_op_;
};

}  // namespace trireme::internal
