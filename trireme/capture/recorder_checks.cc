// The checks of a recorder, and how each finds out:
//
// - Kernels that write or alias more than their schemas say, by fingerprints and by storages.
// - Code of the program that reads memory without an operator, by locks. Between two operators the
//   memory of arguments, variables and results is locked (memory_lock.h), so that data_ptr()
//   throws. Memory that the program fills by hand stays open: torch::tensor() writes through a
//   pointer.
// - Gradients that an earlier step left, or that this step leaves for code outside of it.
// - Optimizers of torch::optim, whose numbers would be frozen.
#include <ATen/SparseTensorImpl.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <unordered_set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trireme/base/error.h"
#include "trireme/capture/call_site.h"
#include "trireme/capture/fingerprint.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/recorder_call.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

// Returns the optimizer of Trireme that does what one of torch::optim does; empty if there is none.
std::string own_optimizer(const std::string& name) {
  if (name == "SGD") return "tr::Sgd";
  if (name == "RMSprop") return "tr::RmsProp";
  if (name == "Adam" || name == "AdamW" || name == "Adagrad") return absl::StrCat("tr::", name);
  return "";
}

std::string optimizer_refusal(const std::string& name) {
  const std::string own = own_optimizer(name);
  return absl::StrCat("it calls step() of torch::optim::", name,
                      ", which keeps the learning rate and its step count as C++ numbers, so that "
                      "replays would repeat those of the capture. Use ",
                      own.empty() ? "an optimizer of Trireme, such as tr::Adam," : own,
                      " inside of captured functions");
}

// Returns true if the operator of a capture is the one that the program called. `called` is named
// as in at::_ops: "add__Tensor" for "aten::add_.Tensor".
bool is_same_operator(absl::string_view recorded, const std::string& called) {
  absl::ConsumePrefix(&recorded, "aten::");
  return absl::StrReplaceAll(recorded, {{".", "_"}}) == called;
}

}  // namespace

Recorder::~Recorder() {
  unlock_all();
}

// Returns true for the call by which torch::nn::Module::zero_grad() drops a gradient: it detaches
// the gradient first. Nothing is recorded for it.
bool Recorder::drops_leftover_gradient(const Call& call) {
  if (current_op_ != "aten::detach") return false;
  const at::Tensor& tensor = call.originals[0].toTensor();
  const Memory* memory = tensor.has_storage() ? table_.find(tensor) : nullptr;
  return memory != nullptr && memory->origin == MemoryOrigin::kLeftoverGradient;
}

void Recorder::refuse_leftover_gradient(const Call& call) const {
  if (absl::StartsWith(current_op_, "aten::zero_") || !call.written.empty()) {
    refuse(
        "it writes to the gradient that an earlier step left in '.grad'. Drop gradients with "
        "zero_grad(), not zero_grad(false), before backward(), or use optimizer.minimize(loss)");
  }
  refuse(
      "it uses the gradient that an earlier step left in '.grad'. Call zero_grad() before "
      "backward(), or use optimizer.minimize(loss)");
}

// Rejects an optimizer of torch::optim where it writes to a variable.
void Recorder::check_variable_write(const Memory& memory) const {
  if (options_.repeated || !variables_[memory.index].record->trainable) return;
  // Our optimizers call the fused kernels, those of torch::optim never do. Spares a look at the
  // stack, which is slow the first time.
  if (absl::StartsWith(current_op_, "aten::_fused_")) return;
  const std::string optimizer = current_call_site().optimizer;
  if (!optimizer.empty()) refuse(optimizer_refusal(optimizer));
}

// Verifies that the kernel wrote only to arguments that its schema marks as written, and updates
// the fingerprints of the memory that it wrote.
void Recorder::check_writes(Call& call) {
  for (size_t i = 0; i < call.read_memories.size(); ++i) {
    const auto storage = call.read_memories[i]->storage->lock();
    if (storage && fingerprint(*storage) != call.read_fingerprints[i]) {
      refuse(absl::StrCat("it writes to its argument '",
                          call.op.schema().arguments()[call.read_arguments[i]].name(),
                          "', which its schema does not mark as written"));
    }
  }
  for (Memory* memory : call.written_memories) {
    const auto storage = memory->storage->lock();
    if (storage) memory->fingerprint = fingerprint(*storage);
    memory->written = true;
    memory->factory = false;
  }
}

// Rejects a result that shares memory with known tensors in a way that the plan does not expect.
void Recorder::check_alias(const Call& call, size_t result, const at::Tensor& tensor) {
  const Memory* memory = tensor.has_storage() ? table_.find(tensor) : nullptr;
  if (memory == nullptr) return;
  for (size_t i = 0; i < call.originals.size(); ++i) {
    bool same = false;
    for_each_tensor(call.originals[i], [&](const at::Tensor& argument) {
      // A sparse argument may share its indices or its values.
      same |= !argument.has_storage() || table_.find(argument) == memory;
    });
    if (same && may_share_memory(call.op, i, result)) return;
  }
  refuse("its result shares memory with an argument, which its schema does not declare");
}

// Writes the dtype that a factory chose into its node. Without one the factory would choose the
// default dtype of the process that replays the graph, which may be another.
void Recorder::resolve_dtype(Call& call) {
  const auto& arguments = call.op.schema().arguments();
  const c10::IValue& result = call.stack->back();
  if (call.op.schema().returns().size() != 1 || !result.isTensor() ||
      !result.toTensor().defined()) {
    return;
  }
  const at::ScalarType dtype = result.toTensor().scalar_type();
  bool given = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "dtype") continue;
    given = !call.originals[i].isNone();
    if (given || !call.takes_no_tensor) continue;
    call.node.mutable_arguments(static_cast<int>(i))->set_integer(static_cast<int64_t>(dtype));
    given = true;
  }
  // An operator that makes floats out of integers uses the default dtype as well.
  if (given || dtype != c10::get_default_dtype_as_scalartype() || dtype == at::kFloat) return;
  bool integers_only = !call.takes_no_tensor;
  for (const c10::IValue& argument : call.originals) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      integers_only &= at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    });
  }
  if (integers_only) {
    builder_.mutable_def().set_default_dtype(1 + static_cast<uint32_t>(dtype));
  }
}

void Recorder::note_flow(const Call& call) {
  Flow& flow = flows_.emplace_back();
  for (const auto* memories : {&call.read_memories, &call.written_memories}) {
    flow.from.insert(flow.from.end(), memories->begin(), memories->end());
  }
  for (const auto* memories : {&call.written_memories, &call.result_memories}) {
    flow.to.insert(flow.to.end(), memories->begin(), memories->end());
  }
}

void Recorder::check_left_gradients(const LeftGradients& left) {
  if (left.empty()) return;
  // Memory that something of the step depends on: an output, a variable, or an operator without
  // results, such as one that pushes a gradient.
  std::unordered_set<const Memory*> used(output_memories_.begin(), output_memories_.end());
  for (const Memory& memory : table_.memories()) {
    if (memory.origin == MemoryOrigin::kVariable) used.insert(&memory);
  }
  for (auto flow = flows_.rbegin(); flow != flows_.rend(); ++flow) {
    const auto is_used = [&](const Memory* memory) { return used.contains(memory); };
    if (!flow->to.empty() && std::ranges::none_of(flow->to, is_used)) continue;
    used.insert(flow->from.begin(), flow->from.end());
  }
  for (const auto& [variable, gradient] : left) {
    const Memory* memory = gradient.has_storage() ? table_.find(gradient) : nullptr;
    // A sparse gradient cannot be followed.
    if (memory == nullptr || used.contains(memory)) return;
  }
  current_op_.clear();
  refuse(absl::StrCat("it leaves the gradient of variable '", left.front().first,
                      "' in '.grad' and does not use it. A replay does not set '.grad', so an "
                      "optimizer outside of the function would not see it. Call "
                      "optimizer.minimize(loss), or backward() and optimizer.step(), inside of the "
                      "function; or return the gradients"));
}

// Opens the memory that an operator works on, or locks it again after the operator.
void Recorder::set_locked(const Call& call, bool locked) {
  if (!options_.lock_memory) return;
  for (const auto* memories :
       {&call.read_memories, &call.written_memories, &call.result_memories}) {
    for (const Memory* memory : *memories) set_locked(*memory, locked);
  }
  for (const c10::IValue& argument : call.originals) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (!tensor.is_sparse()) return;
      const auto* sparse = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
      for (const at::Tensor& part : {sparse->indices(), sparse->values()}) {
        if (const Memory* memory = table_.find(part)) set_locked(*memory, locked);
      }
    });
  }
}

void Recorder::set_locked(const Memory& memory, bool locked) const {
  const bool lockable = memory.origin == MemoryOrigin::kInput ||
                        memory.origin == MemoryOrigin::kVariable ||
                        (memory.origin == MemoryOrigin::kResult && !memory.factory);
  const auto storage = memory.storage->lock();
  if (!lockable || !storage) return;
  if (locked) {
    lock_memory(*storage, lock_message_);
  } else {
    unlock_memory(*storage);
  }
}

void Recorder::unlock_all() const {
  if (!options_.lock_memory) return;
  for (const Memory& memory : table_.memories()) set_locked(memory, false);
}

void Recorder::refuse(const std::string& why) const {
  const CallSite site = current_call_site();
  std::string message = absl::StrCat("function '", options_.name, "' cannot be captured: ");
  if (!site.optimizer.empty()) {
    absl::StrAppend(&message, optimizer_refusal(site.optimizer));
    throw Error(ErrorCode::kFailedPrecondition, message);
  }
  if (!current_op_.empty()) {
    absl::StrAppend(&message, "operator '", current_op_, "'");
    if (!site.op.empty() && !is_same_operator(current_op_, site.op)) {
      absl::StrAppend(&message, ", called by '", site.op, "'");
    }
    if (!site.module.empty()) absl::StrAppend(&message, " in torch::nn::", site.module);
    absl::StrAppend(&message, ": ");
  }
  throw Error(ErrorCode::kFailedPrecondition, message + why);
}

}  // namespace trireme::internal
