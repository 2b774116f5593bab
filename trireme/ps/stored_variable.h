#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/error.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/change_watcher.h"
#include "trireme/ps/push_id.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/update.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

// Optimizer of one variable: the update rule and its state. The variable's lock guards it.
struct OptimizerState {
  // Allocates the state for a variable.
  OptimizerState(std::shared_ptr<const internal::UpdateRule> rule, const at::Tensor& parameter);
  // Applies a gradient to `parameter`, at learning rate `rate`, or at that of the rule's options if
  // it has no value. Throws if the rule rejects the gradient; then nothing is changed.
  void update(const at::Tensor& parameter, const Update& update, std::optional<double> rate);

  std::shared_ptr<const internal::UpdateRule> rule;
  std::vector<at::Tensor> slots;  // tensors of the rule, such as momentum, in its order
  at::Tensor step;                // number of updates of this variable
  at::Tensor lr;                  // learning rate of an update while it is applied
};

// Limits the bytes of snapshots that a server keeps in case they are pulled again. Thread-safe.
class SnapshotBudget {
 public:
  explicit SnapshotBudget(uint64_t limit) : left_(limit) {}
  // Reserves bytes. Returns false, and reserves nothing, if that many are not left.
  bool take(uint64_t bytes);
  void release(uint64_t bytes) { left_ += bytes; }

 private:
  std::atomic<uint64_t> left_;
};

// A variable, or one shard of a variable, on a server, together with its optimizer, its counters
// and the records of the pushes that it has applied. Thread-safe.
class StoredVariable final : public HostedVariable {
 public:
  StoredVariable(std::string container, std::string name, at::Tensor tensor, uint64_t handle)
      : HostedVariable(std::move(name), std::move(tensor)),
        container(std::move(container)),
        handle(handle) {}
  ~StoredVariable() override { drop_snapshot(); }

  const std::string container;
  const uint64_t handle;

  // Returns an error if the update's shape, dtype or row ids do not fit the variable, if variables
  // of its dtype cannot be added to, or if it is a gradient that the variable's optimizer rejects.
  // A push checks all its updates before it applies the first, so that a wrong one changes nothing.
  absl::Status check(const Update& update);
  // Returns OUT_OF_RANGE if an id is not a row of the variable.
  absl::Status check_ids(const at::Tensor& ids) const;

  // The push that an update belongs to.
  struct Push {
    std::shared_ptr<Writer> writer;
    PushId id;
  };
  // Applies an update that check() accepts. A push is applied only the first time; repetitions
  // change nothing. An update without a push is always applied. A gradient is applied
  // at the rate `lr`, or at that of the optimizer's options if it has no value. Returns the version
  // after the update, or ABORTED if the writer is over or the push is already decided.
  absl::StatusOr<uint64_t> apply(const Update& update, const std::optional<Push>& push,
                                 std::optional<double> lr);

  // Copies the contents to `out`, or the rows with these ids if `ids` is defined, and returns their
  // version. `out` may be null if there is nothing to copy.
  uint64_t read(const at::Tensor& ids, void* out);
  // A copy of the contents that is never written to, and its version.
  struct Snapshot {
    at::Tensor contents;
    uint64_t version = 0;
  };
  // Returns a snapshot of the present contents. If `kept` has room for the copy, all callers share
  // it until the variable changes, so that many workers can pull the variable at the cost of one
  // copy. Otherwise every caller gets a copy of its own.
  Snapshot snapshot(const std::shared_ptr<SnapshotBudget>& kept);

  // The rule of the variable's optimizer and the tensors of its state, which stay the same objects.
  struct SavedOptimizer {
    std::shared_ptr<const internal::UpdateRule> rule;  // null without an optimizer
    std::vector<at::Tensor> slots;
  };
  SavedOptimizer saved_optimizer();
  // Calls `copy` while neither the contents nor the optimizer's state can change. Returns the
  // number of updates that the optimizer has applied by then.
  double read_state(const std::function<void()>& copy);
  // Calls the watcher before each change from now on, in place of an earlier one. Before that,
  // calls `copy`, unless it is null, while nothing can change. Returns the number of updates that
  // the optimizer has applied so far.
  double watch(std::shared_ptr<ChangeWatcher> watcher, const std::function<void()>& copy = nullptr);
  // Ends that, if the watcher is still this one.
  void unwatch(const ChangeWatcher* watcher);
  void before_change() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { before_change({}); }
  // Overwrites bytes of the contents, or of the optimizer's slot with this index if it is not
  // negative. The caller has checked that they exist.
  void overwrite(int slot, uint64_t offset, const void* data, size_t bytes);
  // Sets the number of updates that the optimizer has applied. The variable must have one.
  void set_step(double step);

  // Sets the optimizer and returns true. Returns false, and keeps the present optimizer with its
  // state, if that has the same rule and options. Fails with ALREADY_EXISTS if the present one
  // differs, with INVALID_ARGUMENT if the rule cannot update variables of this dtype, and with
  // NOT_FOUND after retire().
  absl::StatusOr<bool> set_optimizer(std::unique_ptr<OptimizerState> optimizer);
  // Notes that the variable was removed from its store, so that it gets no optimizer any more.
  // Returns the bytes of its contents and its optimizer's state, which are then final.
  uint64_t retire();

  struct Stats {
    uint64_t reads = 0, updates = 0;
    uint64_t bytes = 0;         // size of the variable's contents
    uint64_t state_bytes = 0;   // size of its optimizer's state
    uint64_t record_bytes = 0;  // size of its records of pushes
    std::string optimizer;      // name of the rule; empty if it has no optimizer
  };
  Stats stats();
  // Drops records of pushes that are decided or whose writer has ended.
  void forget_pushes();

  // Returns the origin of errors that concern this variable.
  Origin object() const { return {"", "variable '" + name + "'"}; }

 private:
  // Returns true if an update of this push is to be applied, and false if it was applied before.
  // Fails if it is rejected.
  absl::StatusOr<bool> is_new(const Push& push) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  uint64_t state_bytes() const ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return optimizer_ ? optimizer_->slots.size() * tensor.nbytes() : 0;
  }
  // Lets the watcher of a save copy what is about to change: the rows `ids`, or everything if they
  // are undefined.
  void before_change(const at::Tensor& ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (watcher_ != nullptr) watcher_->before_change(*this, ids);
  }
  double step() const ABSL_SHARED_LOCKS_REQUIRED(mutex);
  // Changes the contents, or a copy of them in the host's memory.
  void change(const at::Tensor& contents, const Update& update, std::optional<double> lr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Drops the kept snapshot. Pulls that are sending it keep it until they are done.
  void drop_snapshot();

  std::atomic<uint64_t> reads_ = 0;
  std::atomic<uint64_t> updates_ = 0;
  PushRecords records_ ABSL_GUARDED_BY(mutex);
  std::unique_ptr<OptimizerState> optimizer_ ABSL_GUARDED_BY(mutex);
  std::shared_ptr<ChangeWatcher> watcher_ ABSL_GUARDED_BY(mutex);  // null if no save is under way
  bool retired_ ABSL_GUARDED_BY(mutex) = false;  // true once it was removed from its store

  // The snapshot that is kept; its contents are undefined if there is none. Lock order: mutex
  // before snapshot_mutex_.
  Mutex snapshot_mutex_;
  Snapshot snapshot_ ABSL_GUARDED_BY(snapshot_mutex_);
  std::shared_ptr<SnapshotBudget> snapshot_budget_ ABSL_GUARDED_BY(snapshot_mutex_);
};

}  // namespace trireme
