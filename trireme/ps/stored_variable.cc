#include "trireme/ps/stored_variable.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/kernels.h"
#include "trireme/ps/packing.h"
#include "trireme/tensor/buffer_pool.h"

// A shard and its records of pushes change together, under one lock. apply() takes the lock for
// writing, asks the records whether the push is new, changes the contents and records the push
// before it releases the lock. So a push that arrives a second time, from a retry or from another
// worker that ran the same closure, always finds either both the change and the record or neither.
//
// Pulls of large variables send a snapshot instead of the contents, because sending takes long and
// must neither block updates nor see half of one. Readers hold the lock for reading while they
// copy. Under it, snapshot_mutex_ lets concurrent pulls make one copy after the other, so that the
// later ones find the copy of the first. The number of writes tells whether a kept snapshot is
// still current; operators of sessions also write to hosted variables, without calling apply(), so
// dropping the snapshot in apply() would not be enough.
namespace trireme {

using internal::TensorShape;

OptimizerState::OptimizerState(std::shared_ptr<const internal::UpdateRule> given,
                               const at::Tensor& parameter)
    : rule(std::move(given)),
      step(at::full({}, 0.0, at::kFloat)),
      lr(at::full({}, rule->lr(), at::kDouble)) {
  for (const internal::Slot& slot : rule->slots()) {
    slots.push_back(at::full_like(parameter, slot.initial));
  }
}

absl::Status StoredVariable::check_ids(const at::Tensor& ids) const {
  if (tensor.dim() == 0) {
    return make_status(ErrorCode::kInvalidArgument, "a scalar has no rows", object());
  }
  const int64_t rows = tensor.size(0);
  const int64_t* id = static_cast<const int64_t*>(ids.const_data_ptr());
  // Negative ids are large as unsigned numbers, so one comparison checks both bounds.
  const int64_t* wrong = std::find_if(id, id + ids.numel(), [rows](int64_t value) {
    return static_cast<uint64_t>(value) >= static_cast<uint64_t>(rows);
  });
  if (wrong == id + ids.numel()) return absl::OkStatus();
  return make_status(ErrorCode::kOutOfRange,
                     absl::StrCat("row ", *wrong, " does not exist; it has ", rows, " rows"),
                     object());
}

absl::Status StoredVariable::check(const Update& update) {
  TensorShape expected = TensorShape::of(tensor);
  if (update.ids.defined()) {
    TRIREME_RETURN_IF_ERROR(check_ids(update.ids));
    expected.sizes[0] = update.ids.numel();
  }
  if (TensorShape::of(update.values) != expected) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("the update is ", internal::to_string(TensorShape::of(update.values)),
                     ", but it must be ", internal::to_string(expected)),
        object());
  }
  if (update.kind != Update::Kind::kGradient) return absl::OkStatus();
  ReaderLock lock(mutex);
  if (optimizer_) return absl::OkStatus();
  return make_status(ErrorCode::kFailedPrecondition,
                     "a gradient was pushed to it, but it has no optimizer; set one first",
                     object());
}

absl::Status StoredVariable::apply(const Update& update, const std::optional<Push>& push,
                                   std::optional<double> lr) {
  WriterLock lock(mutex);
  if (push) {
    switch (records_.classify(push->writer, push->id)) {
      case PushRecords::Verdict::kNew:
        break;
      case PushRecords::Verdict::kRepeated:
        return absl::OkStatus();
      case PushRecords::Verdict::kDecided:
        return with_origin(already_decided(push->id), object());
      case PushRecords::Verdict::kTooMany:
        return make_status(
            ErrorCode::kResourceExhausted,
            absl::StrCat("the push is rejected, since records of earlier pushes take ",
                         records_.bytes(),
                         " bytes, the limit; their writers have to raise their watermarks"),
            object());
    }
  }
  drop_snapshot();
  // The thread-safety analysis does not see that the lock is held inside the lambda.
  const absl::Status status =
      try_call([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { change(update, lr); });
  if (!status.ok()) return with_origin(status, object());
  if (push) records_.add(push->writer, push->id);
  updates_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

void StoredVariable::change(const Update& update, std::optional<double> lr) {
  const bool rows = update.ids.defined();
  switch (update.kind) {
    case Update::Kind::kAdd:
      if (update.values.is_meta()) return internal::add_in_place(tensor, update.scattered);
      rows ? internal::add_rows(tensor, update.ids, update.values)
           : internal::add_in_place(tensor, update.values);
      return;
    case Update::Kind::kAssign:
      if (update.values.is_meta()) return update.scattered.copy_to(tensor.data_ptr());
      rows ? internal::assign_rows(tensor, update.ids, update.values)
           : internal::assign(tensor, update.values);
      return;
    case Update::Kind::kGradient:
      break;
  }
  optimizer_->update(tensor, update, lr);
}

void OptimizerState::update(const at::Tensor& parameter, const Update& update,
                            std::optional<double> rate) {
  const at::NoGradGuard no_gradients;
  step.add_(1);
  if (rate) lr.fill_(*rate);
  try {
    if (update.ids.defined()) {
      const at::Tensor gradient =
          at::sparse_coo_tensor(update.ids.unsqueeze(0), update.values, parameter.sizes(),
                                parameter.options().layout(c10::kSparse));
      rule->update_rows(parameter, gradient, slots, step, lr);
    } else {
      internal::SlotTensors each;
      for (const at::Tensor& slot : slots) each.push_back({slot});
      rule->update({parameter}, {update.values}, each, step, lr);
    }
  } catch (...) {
    step.sub_(1);  // rules throw before they change anything else
    throw;
  }
}

void StoredVariable::read(const at::Tensor& ids, void* out) {
  reads_.fetch_add(1, std::memory_order_relaxed);
  ReaderLock lock(mutex);
  if (ids.defined()) return internal::gather_rows(tensor, ids, out);
  std::memcpy(out, tensor.const_data_ptr(), tensor.nbytes());
}

bool SnapshotBudget::take(uint64_t bytes) {
  uint64_t left = left_.load();
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes)) return true;
  }
  return false;
}

// If there is an outdated snapshot, its part of the budget passes to the new one.
at::Tensor StoredVariable::snapshot(const std::shared_ptr<SnapshotBudget>& kept) {
  reads_.fetch_add(1, std::memory_order_relaxed);
  ReaderLock lock(mutex);
  MutexLock snapshot_lock(snapshot_mutex_);
  if (snapshot_.defined() && snapshot_writes_ == mutex.writes()) return snapshot_;
  at::Tensor copy = BufferPool::shared().empty(tensor.sizes(), tensor.scalar_type());
  std::memcpy(copy.data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  if (!snapshot_.defined()) {
    if (!kept->take(tensor.nbytes())) return copy;
    snapshot_budget_ = kept;
  }
  snapshot_ = copy;
  snapshot_writes_ = mutex.writes();
  return copy;
}

void StoredVariable::drop_snapshot() {
  MutexLock lock(snapshot_mutex_);
  if (!snapshot_.defined()) return;
  snapshot_ = at::Tensor();
  snapshot_budget_->release(tensor.nbytes());
}

absl::StatusOr<bool> StoredVariable::set_optimizer(std::unique_ptr<OptimizerState> optimizer) {
  WriterLock lock(mutex);
  if (!optimizer_) {
    optimizer_ = std::move(optimizer);
    return true;
  }
  const internal::UpdateRule &has = *optimizer_->rule, &wanted = *optimizer->rule;
  if (has.name() == wanted.name() && has.options() == wanted.options()) return false;
  return make_status(
      ErrorCode::kAlreadyExists,
      absl::StrCat("it already has an optimizer, ", has.name(),
                   has.name() == wanted.name() ? " with other options" : "",
                   "; delete and create the variable to train it with ", wanted.name()),
      object());
}

StoredVariable::Stats StoredVariable::stats() {
  Stats stats{.reads = reads_.load(std::memory_order_relaxed),
              .updates = updates_.load(std::memory_order_relaxed),
              .bytes = tensor.nbytes()};
  ReaderLock lock(mutex);
  stats.record_bytes = records_.bytes();
  if (optimizer_) {
    stats.optimizer = optimizer_->rule->name();
    stats.state_bytes = optimizer_->slots.size() * tensor.nbytes();
  }
  return stats;
}

void StoredVariable::forget_pushes() {
  WriterLock lock(mutex);
  records_.forget();
}

}  // namespace trireme
