#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/element_account.h"
#include "trireme/coordinator/range_account.h"
#include "trireme/data/ranges.h"

namespace trireme::internal {

// The account of a resource whose dataset all workers share (Shard::kDynamic). It is cut into
// ranges, which workers take as they need them. Thread-safe.
class DynamicAccount final : public ElementAccount {
 public:
  // `epochs` is the number of times that each element is drawn; 0 for endless repetition. Throws
  // Error if the dataset cannot be cut into ranges.
  DynamicAccount(uint64_t resource, uint64_t seed, Dataset dataset, uint64_t epochs);

  bool is_shared() const override { return true; }
  bool has_dataset(int /*worker*/) const override { return true; }
  void set_dataset(int /*worker*/, int /*pipeline*/, Dataset /*dataset*/) override {}
  void forget_worker(int worker) override { release_worker(worker); }
  void release_worker(int worker) override;
  std::optional<WorkerIterator> iterator(int worker) const override;
  void add_editions(std::set<uint64_t>& editions) const override;

  Allotment allot(int worker, uint64_t count) override;
  bool can_keep(const AllottedElements& elements) const override;
  void note_used(const AllottedElements& elements) override;
  void put_back(const AllottedElements& elements) override;
  bool exists(uint64_t number) const override;
  bool note_end(const AllottedElements& elements, uint64_t number, bool is_beyond) override;
  void on_change(uint64_t changes, std::function<void()> callback) override;
  void notify() override;

  absl::StatusOr<std::vector<IteratorPosition>> positions() const override;
  // The number of workers does not matter.
  absl::Status restore(const std::vector<IteratorPosition>& positions) override;
  std::string describe() const override;
  std::shared_ptr<ElementAccount> begin_again() const override;

 private:
  using Callbacks = std::vector<std::function<void()>>;

  bool is_current(const AllottedElements& elements) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return elements.edition == edition_;
  }
  static void call_all(Callbacks callbacks);

  const Dataset dataset_;
  const uint64_t epochs_;
  const DatasetRanges sizes_;
  mutable Mutex mutex_;
  uint64_t edition_ ABSL_GUARDED_BY(mutex_);
  uint64_t seed_ ABSL_GUARDED_BY(mutex_);
  RangeAccount ranges_ ABSL_GUARDED_BY(mutex_);
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  Callbacks waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
