// Decides which value of the graph a tensor of the step is. A tensor is identified by its memory
// and by its geometry in that memory, never by the tensor object (see value_table.h).
//
// Memory that the recorder has not seen before comes from outside of the step. If it belongs to a
// variable, the variable is added to the graph, and kernels work on a scratch copy of it from then
// on (adopt_variable, substitute). Any other tensor becomes a constant (adopt_external). Memory
// that is known but seen with a new geometry gets an as_strided node, since no operator announced
// the view.
#include <ATen/ops/as_strided.h>

#include "absl/strings/str_cat.h"
#include "trireme/capture/fingerprint.h"
#include "trireme/capture/recorder.h"
#include "trireme/capture/scratch.h"

namespace trireme::internal {

int64_t Recorder::value_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return -1;
  if (tensor.is_sparse()) {
    if (const auto value = table_.find_sparse(tensor)) return *value;
    refuse("it uses a sparse tensor that was not made inside of the function");
  }
  if (tensor.layout() != at::kStrided || !tensor.has_storage()) {
    refuse("one of its arguments is neither a dense nor a sparse COO tensor");
  }
  Memory& memory = memory_of(tensor);
  if (memory.origin == MemoryOrigin::kExternal) {
    external_objects_.try_emplace(tensor.unsafeGetTensorImpl(), tensor.getIntrusivePtr());
  }
  return value_in(memory, tensor);
}

uint32_t Recorder::value_in(Memory& memory, const at::Tensor& tensor) {
  const Geometry geometry = table_.geometry_of(tensor);
  if (const auto value = ValueTable::lookup(memory, geometry)) return *value;
  if (memory.origin == MemoryOrigin::kExternal) {
    // Writes to it are rejected, so each view of it can be a constant of its own.
    // A lazily conjugated or negated view is resolved, since the copy holds plain numbers.
    const at::Tensor contents = scratch_copy(tensor.detach().resolve_conj().resolve_neg());
    const uint32_t value = builder_.add_constant(contents.detach(), geometry.wrapped_number);
    memory.values.emplace_back(geometry, value);
    return value;
  }
  // The view was made without an operator: by `.data()`, or by autograd when it saved a tensor.
  // Express it as a view of any plain value in the same memory.
  for (const auto& [known, base] : memory.values) {
    if (known.dtype != geometry.dtype || known.conjugate || known.negative ||
        known.wrapped_number || geometry.conjugate || geometry.negative ||
        geometry.wrapped_number) {
      continue;
    }
    proto::Node* node = builder_.add_node("trireme::as_strided");
    node->add_arguments()->set_value(base);
    auto* sizes = node->add_arguments()->mutable_integers();
    for (int64_t size : geometry.sizes) sizes->add_items(size);
    auto* strides = node->add_arguments()->mutable_integers();
    for (int64_t stride : geometry.strides) strides->add_items(stride);
    node->add_arguments()->set_integer((geometry.offset - known.offset) /
                                       static_cast<int64_t>(tensor.dtype().itemsize()));
    const uint32_t value = builder_.add_value(proto::Value::RESULT, 0, tensor);
    node->add_results()->set_value(value);
    memory.values.emplace_back(geometry, value);
    return value;
  }
  refuse(
      "one of its arguments views known memory as another dtype, and no operator made that view");
}

Memory& Recorder::memory_of(const at::Tensor& tensor) {
  if (Memory* memory = table_.find(tensor)) return *memory;
  const auto found = variable_storages_.find(tensor.storage().unsafeGetStorageImpl());
  return found == variable_storages_.end() ? adopt_external(tensor) : adopt_variable(found->second);
}

// Adds a variable to the graph when the step first uses it. Makes two copies of its contents: one
// that kernels change, and one that stays as the starting point for check_replay().
Memory& Recorder::adopt_variable(const std::shared_ptr<VariableRecord>& record) {
  const at::Tensor& live = record->tensor;
  if (const auto other = sharing_.find(record->name); other != sharing_.end()) {
    refuse(absl::StrCat(
        "variables '", other->first, "' and '", other->second,
        "' share memory; keep one of them as a variable, and take the other as a view of "
        "it inside of the function"));
  }
  VariableUse use{record,
                  scratch_copy(live),
                  {},
                  live.storage().unsafeGetStorageImpl(),
                  fingerprint(*live.storage().unsafeGetStorageImpl()),
                  record->replays};
  perturb_variable(use.before, options_.perturbation);
  use.before = use.before.detach();
  use.scratch = scratch_copy(use.before);
  const size_t index = variables_.size();
  Memory& memory = table_.add(live, MemoryOrigin::kVariable, index);
  table_.alias(use.scratch, memory);
  memory.fingerprint = fingerprint(*use.scratch.storage().unsafeGetStorageImpl());
  proto::Variable* variable = builder_.mutable_def().add_variables();
  variable->set_name(record->name);
  variable->set_trainable(record->trainable);
  variable->set_slot_of(record->slot_of);
  variable->set_device(record->device);
  variable->set_device_reason(builder_.scope(record->device_scopes));
  set_type(live, variable->mutable_type());
  const uint32_t value = builder_.add_value(proto::Value::VARIABLE, index, live);
  memory.values.emplace_back(table_.geometry_of(live), value);
  variables_.push_back(std::move(use));
  return memory;
}

// Adds the memory of a tensor from outside of the step, which becomes a constant. It is watched, so
// that the graph is captured again once the program has written to it or uses another tensor.
Memory& Recorder::adopt_external(const at::Tensor& tensor) {
  if (tensor.requires_grad()) {
    refuse(
        "it uses a tensor that needs gradients and is not a variable: it would become a "
        "constant. Hand its module to an optimizer or to tr::track(), or make it a tr::Variable; "
        "detach() it if a constant is meant");
  }
  Memory& memory = table_.add(tensor, MemoryOrigin::kExternal, 0);
  memory.fingerprint = fingerprint(*tensor.storage().unsafeGetStorageImpl());
  ExternalTensor external{
      .storage = tensor.storage().getWeakStorageImpl(),
      .fingerprint = quick_fingerprint(*tensor.storage().unsafeGetStorageImpl()),
      .borrowed = tensor.storage().allocator() == nullptr};
  if (!tensor.is_inference()) {
    external.version = tensor.unsafeGetTensorImpl()->version_counter();
    external.captured_version = external.version->current_version();
  }
  externals_.push_back(std::move(external));
  return memory;
}

// Detects that the program wrote to memory without an operator: its bytes have changed since an
// operator last wrote to it. That is normal for a tensor that was just made and is then filled by
// hand, by torch::tensor(vector) or through an accessor; its contents become a constant. Any other
// such write is rejected.
void Recorder::handle_hidden_write(Memory& memory, const at::Tensor& tensor) {
  const auto storage = memory.storage->lock();
  if (!storage || memory.origin == MemoryOrigin::kVariable) return;
  const uint64_t now = fingerprint(*storage);
  if (now == memory.fingerprint) return;
  if (!memory.factory) {
    refuse(
        "one of its arguments was written without an operator (through data_ptr or an "
        "accessor), which a replay cannot repeat");
  }
  const Geometry& base = memory.values.front().first;
  const at::Tensor whole =
      at::as_strided(tensor.detach(), base.sizes, base.strides,
                     base.offset / static_cast<int64_t>(tensor.dtype().itemsize()));
  const uint32_t value = builder_.add_constant(scratch_copy(whole), base.wrapped_number);
  memory.values = {{base, value}};
  memory.origin = MemoryOrigin::kConstant;
  memory.factory = false;
  memory.fingerprint = now;
}

// Returns the tensor that kernels see in place of `tensor`: for a variable, or a view of one, the
// same view of its scratch copy; otherwise `tensor` itself.
at::Tensor Recorder::substitute(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor;
  const Memory* memory = table_.find(tensor);
  if (memory == nullptr || memory->origin != MemoryOrigin::kVariable) return tensor;
  const VariableUse& use = variables_[memory->index];
  if (tensor.storage().unsafeGetStorageImpl() != use.live_storage) return tensor;
  const int64_t offset =
      table_.geometry_of(tensor).offset / static_cast<int64_t>(tensor.dtype().itemsize());
  if (tensor.scalar_type() != use.scratch.scalar_type()) {
    refuse(absl::StrCat("it reads the memory of variable '", use.record->name,
                        "' as another dtype; convert it with to()"));
  }
  return at::as_strided(use.scratch, tensor.sizes(), tensor.strides(), offset);
}

}  // namespace trireme::internal
