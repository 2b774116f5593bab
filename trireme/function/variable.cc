// Where reads and changes of a variable go. During a capture they go to the variable's tensor in
// the program, as ordinary operators that the recorder sees; the graph knows which variable it is,
// and whatever runs the graph redirects them. Outside of a capture they go to the holder of the
// variable: its backend if it lives on parameter servers, or the session that holds its contents.
// They go to the tensor if there is no holder. A variable on another task can be reached only by a
// session. In one of several replicas changes are deferred first of all (replicas.h).
#include "trireme/function/variable.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/TypeProperties.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/replicas.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace {

Error error_of(const internal::VariableRecord& record, ErrorCode code, const std::string& why) {
  return Error(code, why, {"", absl::StrCat("variable '", record.name, "'")});
}

void check_shape(const internal::VariableRecord& record, const at::Tensor& value) {
  if (value.sizes() == record.tensor.sizes()) return;
  throw error_of(record, ErrorCode::kInvalidArgument,
                 absl::StrCat("cannot assign a tensor of shape ", format_shape(value.sizes()),
                              " to it: it has the shape ", format_shape(record.tensor.sizes()),
                              ", and a variable keeps its shape"));
}

// Throws Error if the sum of the variable and `delta` has a dtype that the variable cannot hold.
void check_sum(const internal::VariableRecord& record, const at::Tensor& delta) {
  auto state = at::native::update_result_type_state(record.tensor, {});
  state = at::native::update_result_type_state(delta, state);
  const at::ScalarType held = record.tensor.scalar_type();
  if (c10::canCast(at::native::result_type(state), held)) return;
  throw error_of(record, ErrorCode::kInvalidArgument,
                 absl::StrCat("cannot add a tensor of dtype ", dtype_name(delta.scalar_type()),
                              " to it: it has the dtype ", dtype_name(held),
                              ", and a variable keeps its dtype; convert the tensor with to()"));
}

using Change = internal::VariableHolder::Change;

// Returns the place that reads and changes go to; null for the program's tensor. Throws Error if
// the contents are somewhere else and cannot be reached.
std::shared_ptr<internal::VariableHolder> holder_of(const internal::VariableRecord& record) {
  if (internal::is_capturing()) return nullptr;
  if (record.backend != nullptr) return record.backend;
  if (runs_eagerly()) {
    // A function in eager mode writes to the tensors that it reads, and differentiates by them.
    const std::string holder = internal::held_elsewhere(record);
    if (holder.empty()) return nullptr;
    throw error_of(record, ErrorCode::kFailedPrecondition,
                   absl::StrCat("eager mode computes in this program, but ", holder,
                                ", holds its contents; turn eager mode off with "
                                "tr::run_eagerly(false)"));
  }
  if (auto session = record.holders.find()) return session;
  if (!record.is_remote()) return nullptr;
  throw error_of(record, ErrorCode::kFailedPrecondition,
                 absl::StrCat("it lives on '", record.device,
                              "', not in this program; read and write it in a function "
                              "that a tr::Session runs"));
}

// Returns a value for the variable where its tensor is. Scopes may have put it on another device.
at::Tensor beside(const internal::VariableRecord& record, const at::Tensor& value) {
  const internal::SuspendDeviceCheck no_device_check;
  return value.to(record.tensor.device());
}

using Assign = void (Variable::*)(const at::Tensor&) const;

// Defers an assignment in one of several replicas. It is made once for all of them after the last.
void defer_assign(const Variable& variable, const char* call, const at::Tensor& value,
                  Assign assign) {
  const internal::VariableRecord& record = *internal::Access<Variable>::record(variable);
  const std::string name = absl::StrCat("variable '", record.name, "'");
  if (record.aggregation == Aggregation::kNone) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("cannot ", call, "() in replica ", replica_id(),
                             ": the variable has no aggregation, which says how the values of the "
                             "replicas are combined. Make it with VariableOptions::aggregation, or "
                             "assign outside of strategy.run()"),
                {"", name});
  }
  const at::NoGradGuard no_gradients;
  // The value is copied, since the replica may write to it afterwards. The contents of one that
  // does not count do not matter, but the first replica of each worker must have a tensor.
  const bool counts = record.aggregation != Aggregation::kOnlyFirstReplica || replica_id() == 0;
  internal::defer({.object = &record,
                   .name = name,
                   .call = call,
                   .aggregation = record.aggregation,
                   .values = {counts ? value.clone() : value.detach()},
                   .make = [variable, assign](const std::vector<at::Tensor>& values) {
                     const auto& record = internal::Access<Variable>::record(variable);
                     // The mean of integers is a float.
                     (variable.*assign)(values[0].to(record->tensor.scalar_type()));
                   }});
}

at::Tensor own_copy(const at::Tensor& initial, bool trainable) {
  if (!initial.defined()) {
    throw Error(ErrorCode::kInvalidArgument, "a variable needs a defined initial tensor");
  }
  const internal::SuspendDeviceCheck no_device_check;
  at::Tensor tensor = initial.detach().clone();
  if (trainable && (tensor.is_floating_point() || tensor.is_complex())) {
    tensor.requires_grad_(true);
  }
  return tensor;
}

}  // namespace

Variable::Variable(std::string name, const at::Tensor& initial, VariableOptions options)
    : record_(internal::add_variable({std::move(name), own_copy(initial, options.trainable),
                                      options.trainable, /*slot_of=*/"", options.aggregation})) {}

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
  const auto holder = holder_of(*record_);
  const at::Tensor contents = holder != nullptr ? holder->read(*record_) : record_->tensor;
  if (internal::is_capturing() || runs_eagerly()) return contents;
  const std::optional<c10::Device> device = internal::eager_device();
  if (!device || contents.device() == *device) return contents;
  const internal::SuspendDeviceCheck no_device_check;
  return contents.to(*device);
}

void Variable::assign(const at::Tensor& value) const {
  const auto holder = holder_of(*record_);
  check_shape(*record_, value);
  if (internal::in_replica()) return defer_assign(*this, "assign", value, &Variable::assign);
  if (holder != nullptr) return holder->change(*record_, Change::kAssign, value);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).copy_(value);
}

void Variable::assign_add(const at::Tensor& delta) const {
  const auto holder = holder_of(*record_);
  check_shape(*record_, delta);
  if (internal::in_replica())
    return defer_assign(*this, "assign_add", delta, &Variable::assign_add);
  check_sum(*record_, delta);
  if (holder != nullptr) return holder->change(*record_, Change::kAdd, delta);
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).add_(beside(*record_, delta));
}

void Variable::assign_sub(const at::Tensor& delta) const {
  const auto holder = holder_of(*record_);
  check_shape(*record_, delta);
  if (internal::in_replica())
    return defer_assign(*this, "assign_sub", delta, &Variable::assign_sub);
  check_sum(*record_, delta);
  if (holder != nullptr) {
    const internal::SuspendDeviceCheck no_device_check;
    return holder->change(*record_, Change::kAdd, -delta);
  }
  const at::NoGradGuard no_gradients;
  at::Tensor(record_->tensor).sub_(beside(*record_, delta));
}

at::Tensor operator-(const Variable& a) {
  return -a.read();
}

at::Tensor operator+(const Variable& a, const Variable& b) {
  return a.read() + b.read();
}

at::Tensor operator-(const Variable& a, const Variable& b) {
  return a.read() - b.read();
}

at::Tensor operator*(const Variable& a, const Variable& b) {
  return a.read() * b.read();
}

at::Tensor operator/(const Variable& a, const Variable& b) {
  return a.read() / b.read();
}

at::Tensor operator+(const Variable& a, const at::Scalar& b) {
  return a.read() + b;
}

at::Tensor operator-(const Variable& a, const at::Scalar& b) {
  return a.read() - b;
}

at::Tensor operator*(const Variable& a, const at::Scalar& b) {
  return a.read() * b;
}

at::Tensor operator/(const Variable& a, const at::Scalar& b) {
  return a.read() / b;
}

at::Tensor operator+(const at::Scalar& a, const Variable& b) {
  return a + b.read();
}

at::Tensor operator-(const at::Scalar& a, const Variable& b) {
  return a - b.read();
}

at::Tensor operator*(const at::Scalar& a, const Variable& b) {
  return a * b.read();
}

at::Tensor operator/(const at::Scalar& a, const Variable& b) {
  return a / b.read();
}

}  // namespace trireme
