#include "trireme/function/variable.h"

#include <ATen/core/grad_mode.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_scope.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/replicas.h"

namespace trireme {
namespace {

void check_shape(const internal::VariableRecord& record, const at::Tensor& value) {
  if (value.sizes() == record.tensor.sizes()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      absl::StrCat("cannot assign a tensor of another shape (", value.dim(), " dimensions, ",
                   value.numel(), " elements) to it (", record.tensor.dim(), " dimensions, ",
                   record.tensor.numel(), " elements); a variable keeps its shape"),
      {"", absl::StrCat("variable '", record.name, "'")});
}

// What the program holds of a variable that lives elsewhere is what it starts from.
void check_reachable(const internal::VariableRecord& record) {
  if (!record.is_remote() || internal::is_capturing() || runs_eagerly()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("it lives on '", record.device,
                           "', not in this program; read and write it in a function that a "
                           "tr::Session runs"),
              {"", absl::StrCat("variable '", record.name, "'")});
}

using Change = internal::VariableBackend::Change;

// A capture works on what the program holds; what it reads and changes is redirected later.
bool lives_elsewhere(const internal::VariableRecord& record) {
  return record.backend != nullptr && !internal::is_capturing();
}

using Assign = void (Variable::*)(const at::Tensor&) const;

// In one of several replicas: once for all of them, when they are done.
void assign_later(const Variable& variable, const char* call, const at::Tensor& value,
                  Assign assign) {
  const internal::VariableRecord& record = *variable.record();
  const std::string name = absl::StrCat("variable '", record.name, "'");
  if (record.aggregation == Aggregation::kNone) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat(call, "() in replica ", replica_id(),
                             ", and nothing says what becomes of the values of all replicas; make "
                             "it with VariableOptions::aggregation, or assign outside of "
                             "strategy.run()"),
                {"", name});
  }
  const at::NoGradGuard no_gradients;
  // A copy: the replica may go on to write to it.
  const bool counts = record.aggregation != Aggregation::kOnlyFirstReplica || replica_id() == 0;
  internal::defer({.object = &record,
                   .name = name,
                   .call = call,
                   .aggregation = record.aggregation,
                   .values = {counts ? value.clone() : at::Tensor()},
                   .make = [variable, assign](const std::vector<at::Tensor>& values) {
                     // A mean of whole numbers is none.
                     (variable.*assign)(values[0].to(variable.record()->tensor.scalar_type()));
                   }});
}

at::Tensor own_copy(const at::Tensor& initial, bool trainable) {
  if (!initial.defined()) {
    throw Error(ErrorCode::kInvalidArgument, "a variable needs a defined initial tensor");
  }
  const internal::OwnWork own;
  at::Tensor tensor = initial.detach().clone();
  if (trainable && (tensor.is_floating_point() || tensor.is_complex())) {
    tensor.requires_grad_(true);
  }
  return tensor;
}

}  // namespace

Variable::Variable(std::string name, const at::Tensor& initial, VariableOptions options)
    : record_(internal::add_variable({std::move(name), own_copy(initial, options.trainable),
                                      options.trainable, /*slot_of=*/"", /*in_program=*/false,
                                      options.aggregation})) {}

Variable::Variable(std::shared_ptr<internal::VariableRecord> record) : record_(std::move(record)) {}

const std::string& Variable::name() const {
  return record_->name;
}

bool Variable::trainable() const {
  return record_->trainable;
}

std::string Variable::device() const {
  return shards().front();
}

std::vector<std::string> Variable::shards() const {
  if (record_->backend != nullptr) return record_->backend->devices(*record_);
  return {record_->device};
}

at::Tensor Variable::read() const {
  check_reachable(*record_);
  if (lives_elsewhere(*record_)) return record_->backend->read(*record_);
  return record_->tensor;
}

void Variable::assign(const at::Tensor& value) const {
  check_reachable(*record_);
  check_shape(*record_, value);
  if (internal::in_replica()) return assign_later(*this, "assign", value, &Variable::assign);
  if (lives_elsewhere(*record_)) return record_->backend->change(*record_, Change::kAssign, value);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).copy_(value);
}

void Variable::assign_add(const at::Tensor& delta) const {
  check_reachable(*record_);
  check_shape(*record_, delta);
  if (internal::in_replica())
    return assign_later(*this, "assign_add", delta, &Variable::assign_add);
  if (lives_elsewhere(*record_)) return record_->backend->change(*record_, Change::kAdd, delta);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).add_(delta);
}

void Variable::assign_sub(const at::Tensor& delta) const {
  check_reachable(*record_);
  check_shape(*record_, delta);
  if (internal::in_replica())
    return assign_later(*this, "assign_sub", delta, &Variable::assign_sub);
  if (lives_elsewhere(*record_)) return record_->backend->change(*record_, Change::kAdd, -delta);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).sub_(delta);
}

}  // namespace trireme
