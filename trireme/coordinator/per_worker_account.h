#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/coordinator/element_account.h"

namespace trireme::internal {

// The account of a resource of which every worker has its own dataset. Thread-safe.
class PerWorkerAccount final : public ElementAccount {
 public:
  // The iterators of the workers have seeds that follow from `seed`. `is_constant` is true if all
  // elements of a worker are the same one, so that closures take that of the worker they run on.
  PerWorkerAccount(uint64_t resource, uint64_t seed, bool is_constant)
      : ElementAccount(resource), seed_(seed), is_constant_(is_constant) {}

  bool is_shared() const override { return false; }
  bool has_dataset(int worker) const override;
  void set_dataset(int worker, int pipeline, Dataset dataset) override;
  void forget_worker(int worker) override;
  void release_worker(int /*worker*/) override {}
  std::optional<WorkerIterator> iterator(int worker) const override;
  void add_editions(std::set<uint64_t>& editions) const override;

  // Always allots: only the worker finds out where its dataset ends.
  Allotment allot(int worker, uint64_t count) override;
  bool can_keep(const AllottedElements& elements) const override;
  void note_used(const AllottedElements& elements) override;
  void put_back(const AllottedElements& elements) override;
  // Returns true if another worker has not found the end of its dataset yet.
  bool note_end(const AllottedElements& elements, uint64_t number, bool is_beyond) override;
  void on_change(uint64_t, std::function<void()>) override {}
  void notify() override {}

  absl::StatusOr<std::vector<IteratorPosition>> positions() const override;
  // If there are more or fewer positions than workers, all of them must be at the first element.
  absl::Status restore(const std::vector<IteratorPosition>& positions) override;
  std::string describe() const override;
  std::shared_ptr<ElementAccount> begin_again() const override;

 private:
  struct Account {
    WorkerIterator iterator;
    UsedNumbers used;        // Elements that closures have used.
    UsedNumbers taken;       // These, and elements that are allotted.
    bool has_ended = false;  // True once the worker has found the end of its dataset.
  };

  std::string describe_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the account that allotted elements belong to, or null if there is none any more.
  Account* account_of(const AllottedElements& elements) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t seed_;
  const bool is_constant_;
  mutable Mutex mutex_;
  std::map<int, Account> accounts_ ABSL_GUARDED_BY(mutex_);  // By worker.
};

}  // namespace trireme::internal
