// Which memory a tensor of the step lies in, and which value of the graph it is. Identity is the
// storage and how it is seen, never the tensor object: see value_table.h.
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
  return value_in(memory_of(tensor), tensor);
}

uint32_t Recorder::value_in(Memory& memory, const at::Tensor& tensor) {
  const Geometry geometry = table_.geometry_of(tensor);
  if (const auto value = ValueTable::lookup(memory, geometry)) return *value;
  if (memory.origin == MemoryOrigin::kExternal) {
    // Nobody writes to it, so each of its views is a constant of its own.
    const uint32_t value =
        builder_.add_constant(scratch_copy(tensor).detach(), geometry.wrapped_number);
    memory.values.emplace_back(geometry, value);
    return value;
  }
  // Known memory seen in a new way, which no operator told of: `.data()`, or what autograd saved.
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
      "one of its arguments is a view of known memory with another dtype, which no operator "
      "made");
}

Memory& Recorder::memory_of(const at::Tensor& tensor) {
  if (Memory* memory = table_.find(tensor)) return *memory;
  const auto found = variable_storages_.find(tensor.storage().unsafeGetStorageImpl());
  return found == variable_storages_.end() ? adopt_external(tensor) : adopt_variable(found->second);
}

Memory& Recorder::adopt_variable(const std::shared_ptr<VariableRecord>& record) {
  const at::Tensor& live = record->tensor;
  if (const auto other = sharing_.find(record->name); other != sharing_.end()) {
    refuse(absl::StrCat("variables '", other->first, "' and '", other->second,
                        "' share memory; make one of them a view that the function takes of the "
                        "other"));
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

Memory& Recorder::adopt_external(const at::Tensor& tensor) {
  if (tensor.requires_grad()) {
    refuse(
        "it uses a tensor that needs gradients and is not a variable: it would become a "
        "constant. Hand its module to an optimizer or to tr::track(), or make it a tr::Variable; "
        "detach() it if a constant is meant");
  }
  Memory& memory = table_.add(tensor, MemoryOrigin::kExternal, 0);
  memory.fingerprint = fingerprint(*tensor.storage().unsafeGetStorageImpl());
  if (!tensor.is_inference()) {
    const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
    externals_.push_back({version, version.current_version()});
  }
  return memory;
}

// Memory whose bytes changed since an operator last wrote it was written by the program itself:
// `torch::tensor(vector)`, an accessor.
void Recorder::settle_hidden_write(Memory& memory, const at::Tensor& tensor) {
  const auto storage = memory.storage->lock();
  if (!storage || memory.origin == MemoryOrigin::kVariable) return;
  const uint64_t now = fingerprint(*storage);
  if (now == memory.fingerprint) return;
  if (!memory.factory) {
    refuse(
        "one of its arguments was written without an operator (through data_ptr or an "
        "accessor), which a replay cannot repeat");
  }
  // Made from nothing and then filled by the program: what it was filled with is a constant.
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

// Kernels see a variable's scratch copy where the step passed the variable.
at::Tensor Recorder::substitute(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return tensor;
  const Memory* memory = table_.find(tensor);
  if (memory == nullptr || memory->origin != MemoryOrigin::kVariable) return tensor;
  const VariableUse& use = variables_[memory->index];
  if (tensor.storage().unsafeGetStorageImpl() != use.live_storage) return tensor;
  const int64_t offset =
      table_.geometry_of(tensor).offset / static_cast<int64_t>(tensor.dtype().itemsize());
  if (tensor.scalar_type() != use.scratch.scalar_type()) {
    refuse(absl::StrCat("it sees variable '", use.record->name, "' as another dtype"));
  }
  return at::as_strided(use.scratch, tensor.sizes(), tensor.strides(), offset);
}

}  // namespace trireme::internal
