// How one operator of a captured step becomes a node of the graph. Recorder::run() is called
// between autograd and the kernel, and takes the operator through these stages:
//
//   check_may_record   rejects operators that no graph may hold, or whose result would depend on
//                      the contents of tensors
//   resolve_memories   finds the memory behind each argument and rejects writes to memory that
//                      belongs to the caller or to the program (recorder_checks.cc has the checks)
//   encode             writes the arguments into the node, as values of the graph or as constants
//   execute            runs the kernel, with scratch copies in place of variables
//   check_writes       verifies that the kernel wrote only to arguments that its schema marks
//   record_results     adds the results as values, and drops the node if it turned out to have none
//   annotate           adds scope, module, device, and the node that this one differentiates
//
// Schemas of operators are not taken on trust: a replay frees, reorders and shares memory according
// to them, so a kernel that writes or aliases more than its schema says would be replayed
// incorrectly. Hence the fingerprints before and after the kernel, and check_alias().
//
// The capture key is excluded while an operator is handled, so operators that the recorder itself
// calls are not recorded.
#include "trireme/capture/recorder_call.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/device_scope.h"
#include "trireme/capture/fingerprint.h"
#include "trireme/capture/replica_scope.h"
#include "trireme/capture/scope_stack.h"
#include "trireme/exec/step_generator.h"
#include "trireme/graph/call_rules.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

constexpr char kAsStrided[] = "aten::as_strided";
constexpr int kAsStridedOffset = 3;  // index of its argument `storage_offset`

// Returns true if no argument is, or contains, a defined tensor.
bool takes_no_tensor(c10::ArrayRef<c10::IValue> arguments) {
  bool none = true;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor&) { none = false; });
  }
  return none;
}

// Overwrites uninitialised memory, such as `empty` returns. The old contents may be the very values
// that the program is about to write there by hand, left from an earlier run of the step; such a
// hidden write would not change the fingerprint. Once the memory holds a fixed pattern, the write
// changes it.
void fill_with_pattern(const at::Tensor& tensor) {
  if (tensor.is_sparse() || !tensor.device().is_cpu() || tensor.numel() == 0) return;
  const int byte = tensor.scalar_type() == at::kBool ? 1 : 0xff;
  std::memset(tensor.storage().mutable_data(), byte, tensor.storage().nbytes());
}

}  // namespace

CallObserver call_observer = nullptr;

void for_each_tensor(const c10::IValue& argument,
                     const std::function<void(const at::Tensor&)>& visit) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) visit(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& item : argument.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

void Recorder::run(const c10::OperatorHandle& called, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys_below_hook(keys);
  // A composite operator calls other operators, which come here in turn. Autograd usually
  // decomposes it first; it comes here itself only in inference mode.
  if (is_composite(called)) {
    called.redispatchBoxed(below, stack);
    return;
  }
  // Random operators draw from the step's generator. Most have an overload that takes one; for the
  // others the default generator stands in (see execute).
  c10::OperatorHandle op = called;
  if (is_random(called)) {
    if (const auto other = overload_with_generator(called)) {
      op = *other;
      const size_t first = stack->size() - called.schema().arguments().size();
      stack->insert(stack->begin() + first + generator_argument(op), c10::IValue());
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard no_reentry(kCaptureKey);
  if (reads_only_metadata(op)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  current_op_ = operator_name(op);
  const size_t count = op.schema().arguments().size();
  Call call(op, stack);
  call.originals.assign(stack->end() - count, stack->end());
  // equal() returns a bool to the program, so it is data-dependent, except for a value compared
  // with itself: attention layers do that to find out that query and key are one tensor.
  if (op.operator_name().name == "aten::equal") {
    const at::Tensor &self = call.originals[0].toTensor(), &other = call.originals[1].toTensor();
    if (value_of(self) == value_of(other)) {
      stack->resize(stack->size() - count);
      stack->emplace_back(true);
      return;
    }
  }
  if (drops_leftover_gradient(call)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  check_may_record(call);
  resolve_memories(call);
  encode(call);
  set_locked(call, false);
  execute(call, below);
  if (call_observer != nullptr) call_observer(op, call.arguments());
  check_writes(call);
  record_results(call);
  set_locked(call, true);
}

void Recorder::check_may_record(Call& call) {
  if (is_data_dependent(call.op, call.arguments())) {
    refuse(
        "its result depends on what is in the tensors, so the program would go on with a number "
        "that holds for this step only. Keep it a tensor (torch::where instead of if, masks "
        "instead of indices)");
  }
  if (!is_allowed_operator(current_op_)) {
    refuse("it is not on the list of operators that only compute on tensors (docs/operators.md)");
  }
  const int generator = generator_argument(call.op);
  if (generator >= 0 && call.originals[generator].isGenerator() &&
      call.originals[generator].toGenerator().defined()) {
    refuse(
        "it draws from a generator of the program's own, whose state is not part of the step. "
        "Leave the generator out: a step has its own, seeded from seed and step number");
  }
  call.written = written_arguments(call.op, call.arguments());
  call.takes_no_tensor = takes_no_tensor(call.arguments());
  call.factory = call.takes_no_tensor && !is_random(call.op);
}

// Finds the memory behind each argument, and rejects the call if the step may not use that memory,
// or may not write to it.
void Recorder::resolve_memories(Call& call) {
  for (size_t i = 0; i < call.originals.size(); ++i) {
    const bool writes = std::ranges::find(call.written, static_cast<int>(i)) != call.written.end();
    for_each_tensor(call.originals[i], [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      Memory* memory = &memory_of(tensor);
      if (memory->origin == MemoryOrigin::kLeftoverGradient) refuse_leftover_gradient(call);
      handle_hidden_write(*memory, tensor);
      auto& list = writes ? call.written_memories : call.read_memories;
      if (std::ranges::find(list, memory) == list.end()) {
        list.push_back(memory);
        if (!writes) call.read_arguments.push_back(i);
      }
      if (!writes || tensor.numel() == 0) return;
      if (memory->origin == MemoryOrigin::kInput) {
        refuse(absl::StrCat("it writes to argument ", memory->index,
                            " of the function, which belongs to the caller. Clone it first"));
      }
      if (memory->origin == MemoryOrigin::kExternal) {
        refuse(
            "it writes to a tensor that is not a variable and was made outside of the function: "
            "the write would be lost on the next step. Make it a tr::Variable, or a module's "
            "buffer");
      }
      if (memory->origin == MemoryOrigin::kVariable) check_variable_write(*memory);
    });
  }
  // Memory that is written through one argument may change under another argument that reads it, so
  // it is not checked for unexpected writes.
  for (size_t i = call.read_memories.size(); i-- > 0;) {
    const auto& written = call.written_memories;
    if (std::ranges::find(written, call.read_memories[i]) == written.end()) continue;
    call.read_memories.erase(call.read_memories.begin() + i);
    call.read_arguments.erase(call.read_arguments.begin() + i);
  }
}

// Writes the arguments into the node.
void Recorder::encode(Call& call) {
  call.node.set_op(current_op_);
  const int generator = generator_argument(call.op);
  for (size_t i = 0; i < call.originals.size(); ++i) {
    proto::Argument* argument = call.node.add_arguments();
    if (static_cast<int>(i) == generator) {
      argument->set_generator(true);
    } else {
      encode_argument(
          call.originals[i], [this](const at::Tensor& t) { return value_of(t); }, argument);
    }
  }
  if (current_op_ == kAsStrided && !call.originals[kAsStridedOffset].isNone()) {
    // An argument of the next step may be another slice of its storage, so the offset is recorded
    // from where the tensor begins.
    const int64_t begin = call.originals[0].toTensor().storage_offset();
    call.node.set_op("trireme::as_strided");
    call.node.mutable_arguments(kAsStridedOffset)
        ->set_integer(call.originals[kAsStridedOffset].toInt() - begin);
  }
}

// Runs the kernel. Replaces variables by their scratch copies on the stack before it, and notes
// what check_writes() and record_results() compare with after it. enforce() and trim_results() do
// here what they do in a replay, so that both see the same layouts of tensors.
void Recorder::execute(Call& call, c10::DispatchKeySet keys) {
  torch::jit::Stack& stack = *call.stack;
  const size_t first = stack.size() - call.originals.size();
  const int generator = generator_argument(call.op);
  for (size_t i = 0; i < call.originals.size(); ++i) {
    c10::IValue& argument = stack[first + i];
    const auto stand_in = [&](const at::Tensor& tensor) {
      at::Tensor other = substitute(tensor);
      if (!other.is_same(tensor)) call.substituted.emplace_back(tensor, other);
      return other;
    };
    if (static_cast<int>(i) == generator) {
      argument = generator_;
    } else if (argument.isTensor()) {
      if (argument.toTensor().defined()) argument = stand_in(argument.toTensor());
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(stand_in(tensor));
      argument = std::move(list);
    } else if (argument.isList() &&
               argument.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : argument.toListRef()) {
        list.push_back(item.isNone() || !item.toTensor().defined()
                           ? std::nullopt
                           : std::optional<at::Tensor>(stand_in(item.toTensor())));
      }
      argument = std::move(list);
    }
  }
  if (call.node.op() == "trireme::as_strided") {
    // A scratch copy does not begin where the variable does.
    stack[first + kAsStridedOffset] =
        stack[first].toTensor().storage_offset() + call.node.arguments(kAsStridedOffset).integer();
  }
  for (int i : call.written) {
    const c10::IValue& argument = stack[first + i];
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().has_storage()) {
      call.written_geometries.emplace_back(i, ValueTable::geometry_of(argument.toTensor(), 0));
    }
  }
  for (Memory* memory : call.read_memories) {
    const auto storage = memory->storage->lock();
    call.read_fingerprints.push_back(storage ? fingerprint(*storage) : 0);
  }
  const CallRules rules = call_rules(call.op);
  try {
    enforce(rules, std::span(stack).subspan(first));
  } catch (const Error& error) {
    // Perturbed numbers need not be valid arguments. Not an Error, so that the step is captured
    // again on the original ones.
    if (options_.perturbation != 0) throw std::runtime_error(error.what());
    refuse(error.message());
  }
  // Keeps the arguments alive, since they are looked at after the kernel has popped them.
  const std::vector<c10::IValue> held(stack.begin() + first, stack.end());
  std::optional<BorrowDefaultGenerator> borrow;
  if (is_random(call.op) && generator < 0) borrow.emplace(generator_);
  call.op.redispatchBoxed(keys, &stack);
  borrow.reset();
  trim_results(rules, std::span(stack).subspan(first));
  if (makes_uninitialized(call.op) && call.factory) {
    for (auto result = stack.begin() + first; result != stack.end(); ++result) {
      for_each_tensor(*result, fill_with_pattern);
    }
  }
  for (auto& [index, geometry] : call.written_geometries) {
    const at::Tensor& after = held[index].toTensor();
    if (ValueTable::geometry_of(after, 0) == geometry) continue;
    call.node.set_reshapes(true);
    const Memory* memory = table_.find(call.originals[index].toTensor());
    if (memory != nullptr && memory->origin == MemoryOrigin::kVariable) {
      refuse(absl::StrCat("it changes the shape of variable '",
                          variables_[memory->index].record->name, "'; a variable keeps its shape"));
    }
  }
}

// Adds the results to the graph and completes the node. Results that are scratch copies of
// variables are replaced by the variables themselves: the step must go on with the tensors that it
// knows.
void Recorder::record_results(Call& call) {
  torch::jit::Stack& stack = *call.stack;
  const size_t count = call.op.schema().returns().size();
  const size_t first = stack.size() - count;
  // The node is added before its results, which refer to it by its index.
  proto::Node* node = builder_.add_node("");
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& result = stack[first + i];
    proto::Argument* named = call.node.add_results();
    named->set_none(true);
    for_each_tensor(result, [&](const at::Tensor& tensor) { check_alias(call, i, tensor); });
    if (result.isTensor()) {
      int64_t value = -1;
      if (add_result_value(result.toTensor(), call, &value)) {
        named->set_value(static_cast<uint32_t>(value));
        call.made_value = true;
      }
      for (const auto& [original, stand_in] : call.substituted) {
        if (result.toTensor().is_same(stand_in)) result = original;
      }
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) {
        int64_t value = -1;
        call.made_value |= add_result_value(tensor, call, &value);
        named->mutable_values()->add_ids(value);
      }
    } else {
      refuse("it returns a number to the program, and that number holds for this step only");
    }
  }
  // An operator whose results are all known values (detach, alias, a view of the same shape) and
  // that writes nothing needs no node.
  if (!call.made_value && call.written.empty() && count > 0 && !is_random(call.op)) {
    builder_.drop_last_node();
    return;
  }
  resolve_dtype(call);
  note_flow(call);
  annotate(call);
  *node = std::move(call.node);
  for (Memory* memory : call.written_memories) {
    if (memory->origin == MemoryOrigin::kVariable) {
      builder_.mutable_def().mutable_variables(static_cast<int>(memory->index))->set_written(true);
    }
  }
}

// Adds a result as a value of the graph. Returns true and sets `*value` if the tensor is a new
// value; returns false if it is undefined or already known.
bool Recorder::add_result_value(const at::Tensor& tensor, Call& call, int64_t* value) {
  if (!tensor.defined()) return false;
  if (tensor.is_sparse()) {
    if (table_.find_sparse(tensor)) return false;
    // A sparse tensor that was written in place has other indices and values inside, but remains
    // the same value.
    for (int i : call.written) {
      if (call.originals[i].isTensor() && call.originals[i].toTensor().is_same(tensor)) {
        table_.set_sparse(tensor, call.node.arguments(i).value());
        return false;
      }
    }
    *value = builder_.add_value(proto::Value::RESULT, 0, tensor);
    table_.set_sparse(tensor, *value);
    return true;
  }
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
    refuse("its result is neither a dense nor a sparse COO tensor");
  }
  Memory* memory = table_.find(tensor);
  if (memory == nullptr) {
    memory = &table_.add(tensor, MemoryOrigin::kResult, 0);
    memory->node = builder_.nodes() - 1;
    memory->factory = call.factory;
    memory->fingerprint = fingerprint(*tensor.storage().unsafeGetStorageImpl());
  }
  call.result_memories.push_back(memory);
  const Geometry geometry = table_.geometry_of(tensor);
  if (ValueTable::lookup(*memory, geometry)) return false;
  *value = builder_.add_value(proto::Value::RESULT, 0, tensor);
  memory->values.emplace_back(geometry, *value);
  return true;
}

// Adds to the node what explanations and the placer need: scope, module, device, and for a node of
// the backward pass the forward node that it differentiates.
void Recorder::annotate(Call& call) {
  call.node.set_scope(builder_.scope(absl::StrJoin(scope_stack(), "/")));
  for (const auto* memories : {&call.read_memories, &call.written_memories}) {
    for (const Memory* memory : *memories) {
      if (call.node.module() == 0) call.node.set_module(builder_.scope(module_of(*memory)));
    }
  }
  // Autograd gives each of its functions a sequence number. In the forward pass, a function that
  // was made since the last operator differentiates this node. In the backward pass, the function
  // being evaluated leads back to the forward node by its number.
  const int index = builder_.nodes() - 1;
  call.node.set_in_backward(torch::autograd::get_current_graph_task_id() != -1);
  call.node.set_replica(static_cast<uint32_t>(current_replica() + 1));
  request_device(call.node);
  if (const auto function = torch::autograd::get_current_node()) {
    const auto forward = forward_nodes_.find(function->sequence_nr());
    if (forward == forward_nodes_.end()) return;
    call.node.set_differentiates(forward->second + 1);
    const proto::Node& differentiated = builder_.def().nodes(forward->second);
    if (call.node.module() == 0) call.node.set_module(differentiated.module());
    if (call.node.scope() == 0) call.node.set_scope(differentiated.scope());
  } else if (at::sequence_number::peek() > last_sequence_) {
    last_sequence_ = at::sequence_number::peek();
    forward_nodes_[last_sequence_ - 1] = index;
  }
}

void Recorder::request_device(proto::Node& node) {
  const DeviceRequest request = requested_device({.name = node.op()});
  if (request.colocate_with.defined()) {
    const int64_t value = value_of(request.colocate_with);
    node.set_colocated_with(static_cast<uint32_t>(value + 1));
  } else {
    node.set_device(request.device.to_string());
  }
  node.set_device_reason(builder_.scope(request.scopes));
}

// Returns the path of the module that a variable belongs to: "fc1" for "fc1.weight".
std::string Recorder::module_of(const Memory& memory) const {
  if (memory.origin != MemoryOrigin::kVariable) return "";
  const std::string& name = variables_[memory.index].record->name;
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

}  // namespace trireme::internal
