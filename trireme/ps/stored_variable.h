#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/error.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/push_id.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/update.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

// The optimizer of one variable: the rule and its state, which lies where the variable does.
struct OptimizerState {
  OptimizerState(std::shared_ptr<const internal::UpdateRule> rule, const at::Tensor& parameter);
  void update(const at::Tensor& parameter, const Update& update, std::optional<double> rate);

  std::shared_ptr<const internal::UpdateRule> rule;
  std::vector<at::Tensor> slots;
  at::Tensor step;  // counts the updates of this variable
  at::Tensor lr;
};

// How many bytes of copies a server keeps in case that they are asked for again. Thread-safe.
class SnapshotBudget {
 public:
  explicit SnapshotBudget(uint64_t limit) : left_(limit) {}
  bool take(uint64_t bytes);
  void give_back(uint64_t bytes) { left_ += bytes; }

 private:
  std::atomic<uint64_t> left_;
};

// A variable, or a shard of one, on a server, with what belongs to it: counters, its optimizer's
// state, and which pushes it has taken. Thread-safe.
class StoredVariable final : public HostedVariable {
 public:
  StoredVariable(std::string container, std::string name, at::Tensor tensor, uint64_t handle)
      : HostedVariable(std::move(name), std::move(tensor)),
        container(std::move(container)),
        handle(handle) {}
  ~StoredVariable() override { drop_snapshot(); }

  const std::string container;
  const uint64_t handle;

  // Whether the update fits: shapes, dtypes, ids, an optimizer for gradients. What this allows
  // apply() can do, so that a push is refused before anything of it is done.
  absl::Status check(const Update& update);
  absl::Status check_ids(const at::Tensor& ids) const;

  // Which push an update belongs to; without one it is done whenever it comes.
  struct Push {
    std::shared_ptr<Writer> writer;
    PushId id;
  };
  // Does it, unless the push was taken before. ABORTED if the push is decided.
  absl::Status apply(const Update& update, const std::optional<Push>& push,
                     std::optional<double> lr);

  // Copies the contents out, or the rows with these ids. Memory for them is at `out`.
  void read(const at::Tensor& ids, void* out);
  // A copy of the contents that nobody changes, shared by all who ask until the next change: it is
  // made once however many workers pull. It is kept, if `kept` has room for it, until the variable
  // changes.
  at::Tensor snapshot(const std::shared_ptr<SnapshotBudget>& kept);

  // False if it has the same rule with the same options already; that one stays.
  absl::StatusOr<bool> set_optimizer(std::unique_ptr<OptimizerState> optimizer);

  struct Numbers {
    uint64_t reads = 0, updates = 0;
    uint64_t bytes = 0;  // of the variable alone
    uint64_t state_bytes = 0;
    uint64_t record_bytes = 0;
    std::string optimizer;
  };
  Numbers numbers();
  void forget_pushes();

  // For errors.
  Origin object() const { return {"", "variable '" + name + "'"}; }

 private:
  void change(const Update& update, std::optional<double> lr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void drop_snapshot();

  std::atomic<uint64_t> reads_ = 0;
  std::atomic<uint64_t> updates_ = 0;
  PushRecords records_ ABSL_GUARDED_BY(mutex);
  std::unique_ptr<OptimizerState> optimizer_ ABSL_GUARDED_BY(mutex);

  // The last copy that was made, held by those who send it, and by us if the budget allows.
  Mutex snapshot_mutex_;  // taken while the other one is held
  at::Tensor snapshot_ ABSL_GUARDED_BY(snapshot_mutex_);
  uint64_t snapshot_writes_ ABSL_GUARDED_BY(snapshot_mutex_) = 0;
  std::shared_ptr<SnapshotBudget> snapshot_budget_ ABSL_GUARDED_BY(snapshot_mutex_);
};

}  // namespace trireme
