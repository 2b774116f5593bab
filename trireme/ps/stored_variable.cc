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
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/host_copy.h"
#include "trireme/tensor/stream_copy.h"

// A shard and its records of pushes change together, under one lock. apply() takes the lock for
// writing, asks the records whether the push is new, changes the contents and records the push
// before it releases the lock. So a push that arrives a second time, from a retry or from another
// worker that ran the same closure, always finds either both the change and the record or neither.
//
// Pulls of large variables send a snapshot instead of the contents, because sending takes long and
// must neither block updates nor see half of one. Readers hold the lock for reading while they
// copy. Under it, snapshot_mutex_ lets concurrent pulls make one copy after the other, so that the
// later ones find the copy of the first. The version tells whether a kept snapshot is still
// current; operators of sessions also write to hosted variables, without calling apply(), so
// dropping the snapshot in apply() would not be enough.
//
// Taking the lock for writing takes the next version. A caller that then finds that there is
// nothing to change, such as a repeated push, gives it back before it releases the lock: a version
// that nobody has seen. So equal versions mean equal contents, and nothing but a change of the
// contents or of the optimizer makes pulls copy again.
//
// A save that writes the contents while they change has a watcher, which copies what a change is
// about to overwrite. It is set and called under the lock, so that a change either comes before the
// save or is seen by it. Without a save this costs one comparison.
//
// Variables of parameter servers are in the host's memory. A session may place a variable on an
// accelerator; its functions use it there. Pulls, pushes and saves of such a variable are rare, so
// they work on a copy in the host's memory, made and written back under the lock.
namespace trireme {

using internal::TensorShape;

namespace {

// Smallest variable that is copied past the caches, for a reader that cannot find it there any
// more.
constexpr size_t kStreamReadsFrom = 4 << 20;

}  // namespace

OptimizerState::OptimizerState(std::shared_ptr<const internal::UpdateRule> given,
                               const at::Tensor& parameter)
    : rule(std::move(given)),
      step(at::full({}, 0.0, at::kFloat)),
      lr(at::full({}, rule->lr(), at::kDouble)) {
  for (const internal::Slot& slot : rule->slots()) {
    slots.push_back(at::full_like(parameter, slot.initial, parameter.options().device(c10::kCPU)));
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
  switch (update.kind) {
    case Update::Kind::kAssign:
      return absl::OkStatus();
    case Update::Kind::kAdd:
      if (internal::can_add(expected.dtype)) return absl::OkStatus();
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("variables of dtype ", dtype_name(expected.dtype),
                                      " cannot be added to; assign it instead"),
                         object());
    case Update::Kind::kGradient:
      break;
  }
  ReaderLock lock(mutex);
  if (!optimizer_) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "a gradient was pushed to it, but it has no optimizer; set one first",
                       object());
  }
  // set_optimizer() has checked that the rule can update the variable whole.
  if (!update.ids.defined()) return absl::OkStatus();
  const internal::UpdateRule& rule = *optimizer_->rule;
  return with_origin(try_call([&] { rule.check_rows(); }), object());
}

absl::StatusOr<uint64_t> StoredVariable::apply(const Update& update,
                                               const std::optional<Push>& push,
                                               std::optional<double> lr) {
  WriterLock lock(mutex);
  if (push) {
    const absl::StatusOr<bool> applies = is_new(*push);
    if (!applies.ok() || !*applies) {
      mutex.uncount_write();
      if (!applies.ok()) return with_origin(applies.status(), object());
      return version();
    }
  }
  drop_snapshot();
  before_change(update.ids);
  // The thread-safety analysis does not see that the lock is held inside the lambda.
  const absl::Status status = try_call([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const at::Tensor contents = copy_to_host(tensor);
    change(contents, update, lr);
    if (!tensor.is_cpu()) tensor.copy_(contents);
  });
  if (!status.ok()) return with_origin(status, object());
  if (push) records_.add(push->writer, push->id);
  updates_.fetch_add(1, std::memory_order_relaxed);
  return version();
}

absl::StatusOr<bool> StoredVariable::is_new(const Push& push) {
  switch (records_.classify(push.writer, push.id)) {
    case PushRecords::Verdict::kNew:
      return true;
    case PushRecords::Verdict::kRepeated:
      return false;
    case PushRecords::Verdict::kDecided:
      return push.writer->rejection(push.id);
    case PushRecords::Verdict::kTooMany:
      break;
  }
  return make_status(
      ErrorCode::kResourceExhausted,
      absl::StrCat("the push is rejected, since records of earlier pushes take ", records_.bytes(),
                   " bytes, the limit; their writers have to raise their "
                   "watermarks"));
}

void StoredVariable::change(const at::Tensor& contents, const Update& update,
                            std::optional<double> lr) {
  const bool rows = update.ids.defined();
  switch (update.kind) {
    case Update::Kind::kAdd:
      if (update.values.is_meta()) return internal::add_in_place(contents, update.scattered);
      rows ? internal::add_rows(contents, update.ids, update.values)
           : internal::add_in_place(contents, update.values);
      return;
    case Update::Kind::kAssign:
      if (update.values.is_meta()) return update.scattered.copy_to(contents.data_ptr());
      rows ? internal::assign_rows(contents, update.ids, update.values)
           : internal::assign(contents, update.values);
      return;
    case Update::Kind::kGradient:
      break;
  }
  optimizer_->update(contents, update, lr);
}

void OptimizerState::update(const at::Tensor& parameter, const Update& update,
                            std::optional<double> rate) {
  const at::NoGradGuard no_gradients;
  step.add_(1);
  lr.fill_(rate.value_or(rule->lr()));
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

uint64_t StoredVariable::read(const at::Tensor& ids, void* out) {
  reads_.fetch_add(1, std::memory_order_relaxed);
  ReaderLock lock(mutex);
  const at::Tensor contents = copy_to_host(tensor);
  if (ids.defined()) {
    internal::gather_rows(contents, ids, out);
  } else if (contents.nbytes() >= kStreamReadsFrom) {
    stream_copy(out, contents.const_data_ptr(), contents.nbytes());
  } else if (contents.nbytes() > 0) {
    std::memcpy(out, contents.const_data_ptr(), contents.nbytes());
  }
  return version();
}

bool SnapshotBudget::take(uint64_t bytes) {
  uint64_t left = left_.load();
  while (left >= bytes) {
    if (left_.compare_exchange_weak(left, left - bytes)) return true;
  }
  return false;
}

// If there is an outdated snapshot, its part of the budget passes to the new one.
StoredVariable::Snapshot StoredVariable::snapshot(const std::shared_ptr<SnapshotBudget>& kept) {
  reads_.fetch_add(1, std::memory_order_relaxed);
  ReaderLock lock(mutex);
  MutexLock snapshot_lock(snapshot_mutex_);
  if (snapshot_.contents.defined() && snapshot_.version == version()) return snapshot_;
  Snapshot made{BufferPool::shared().empty(tensor.sizes(), tensor.scalar_type()), version()};
  std::memcpy(made.contents.data_ptr(), copy_to_host(tensor).const_data_ptr(), tensor.nbytes());
  if (!snapshot_.contents.defined()) {
    if (!kept->take(tensor.nbytes())) return made;
    snapshot_budget_ = kept;
  }
  snapshot_ = made;
  return made;
}

void StoredVariable::drop_snapshot() {
  MutexLock lock(snapshot_mutex_);
  if (!snapshot_.contents.defined()) return;
  snapshot_ = {};
  snapshot_budget_->release(tensor.nbytes());
}

absl::StatusOr<bool> StoredVariable::set_optimizer(std::unique_ptr<OptimizerState> optimizer) {
  const absl::Status fits = try_call([&] { optimizer->rule->check_dtype(tensor.scalar_type()); });
  if (!fits.ok()) return with_origin(fits, object());
  WriterLock lock(mutex);
  if (!optimizer_ && !retired_) {
    optimizer_ = std::move(optimizer);
    return true;
  }
  mutex.uncount_write();
  if (retired_) {
    return make_status(ErrorCode::kNotFound,
                       "it was deleted while its optimizer was being set; create it again",
                       object());
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

uint64_t StoredVariable::retire() {
  WriterLock lock(mutex);
  mutex.uncount_write();  // the contents are the same
  retired_ = true;
  return tensor.nbytes() + state_bytes();
}

StoredVariable::Stats StoredVariable::stats() {
  Stats stats{.reads = reads_.load(std::memory_order_relaxed),
              .updates = updates_.load(std::memory_order_relaxed),
              .bytes = tensor.nbytes()};
  ReaderLock lock(mutex);
  stats.record_bytes = records_.bytes();
  stats.state_bytes = state_bytes();
  if (optimizer_) stats.optimizer = optimizer_->rule->name();
  return stats;
}

double StoredVariable::step() const {
  return optimizer_ ? optimizer_->step.item<double>() : 0;
}

StoredVariable::SavedOptimizer StoredVariable::saved_optimizer() {
  ReaderLock lock(mutex);
  if (!optimizer_) return {};
  return {optimizer_->rule, optimizer_->slots};
}

double StoredVariable::read_state(const std::function<void()>& copy) {
  ReaderLock lock(mutex);
  copy();
  return step();
}

double StoredVariable::watch(std::shared_ptr<ChangeWatcher> watcher,
                             const std::function<void()>& copy) {
  WriterLock lock(mutex);
  mutex.uncount_write();  // the contents are the same
  if (copy) copy();
  watcher_ = std::move(watcher);
  return step();
}

void StoredVariable::unwatch(const ChangeWatcher* watcher) {
  WriterLock lock(mutex);
  mutex.uncount_write();  // the contents are the same
  if (watcher_.get() == watcher) watcher_ = nullptr;
}

void StoredVariable::overwrite(int slot, uint64_t offset, const void* data, size_t bytes) {
  WriterLock lock(mutex);
  drop_snapshot();
  before_change(at::Tensor());
  const at::Tensor target = copy_to_host(slot < 0 ? tensor : optimizer_->slots[slot]);
  std::memcpy(static_cast<char*>(target.data_ptr()) + offset, data, bytes);
  if (slot < 0 && !tensor.is_cpu()) tensor.copy_(target);
}

void StoredVariable::set_step(double step) {
  WriterLock lock(mutex);
  mutex.uncount_write();  // the contents are the same
  optimizer_->step.fill_(step);
}

void StoredVariable::forget_pushes() {
  {
    ReaderLock lock(mutex);
    if (!records_.can_forget()) return;
  }
  WriterLock lock(mutex);
  records_.forget();
  mutex.uncount_write();  // the contents are the same
}

}  // namespace trireme
