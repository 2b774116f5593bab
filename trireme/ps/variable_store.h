#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/stored_variable.h"
#include "trireme/runtime/variable_host.h"

namespace trireme {

struct VariableStoreOptions {
  // Limit in bytes for variables and their optimizers' state; 0 for no limit. Variables and
  // optimizers that exceed it are rejected.
  uint64_t memory_limit = 0;
  // Limits in bytes for pushes that are arriving or being applied, and for copies that pulls are
  // sending. Calls beyond a limit wait. Calls of less than a frame do not count.
  uint64_t push_bytes = uint64_t{512} << 20;
  uint64_t pull_bytes = uint64_t{512} << 20;
};

// Holds the variables of one server. Variables are found by container and name, and by a handle,
// which is quicker and is used by the calls of every step. A handle is never reused. Thread-safe.
// Variables may outlive the store.
class VariableStore final : public VariableHost {
 public:
  explicit VariableStore(VariableStoreOptions options = {}) : options_(options) {}

  absl::StatusOr<std::shared_ptr<HostedVariable>> find(const std::string& container,
                                                       const std::string& name) override;
  absl::StatusOr<std::shared_ptr<HostedVariable>> create(const std::string& container,
                                                         const std::string& name,
                                                         const at::Tensor& initial) override;
  void drop_container(const std::string& container) override;

  struct Created {
    std::shared_ptr<StoredVariable> variable;
    bool is_new = false;  // true if this call created it
  };
  // Creates a variable of this shape, whose contents `fill` writes, or finds the one that exists.
  // Memory is allocated only if there is no such variable yet. Fails with RESOURCE_EXHAUSTED beyond
  // the memory limit and with ALREADY_EXISTS if the variable has another shape or dtype.
  absl::StatusOr<Created> make(const std::string& container, const std::string& name,
                               const internal::TensorShape& shape,
                               const std::function<void(at::Tensor&)>& fill);

  // Finds a variable by name. Fails with NOT_FOUND if there is none.
  absl::StatusOr<std::shared_ptr<StoredVariable>> lookup(const std::string& container,
                                                         const std::string& name);
  // Returns the variables in the order of the handles. Fails with NOT_FOUND if a handle is unknown.
  template <typename Handles>
  absl::StatusOr<std::vector<std::shared_ptr<StoredVariable>>> lookup(const Handles& handles) {
    std::vector<std::shared_ptr<StoredVariable>> variables;
    variables.reserve(handles.size());
    ReaderLock lock(mutex_);
    for (const uint64_t handle : handles) {
      const auto found = by_handle_.find(handle);
      if (found == by_handle_.end()) return no_such_handle(handle);
      variables.push_back(found->second);
    }
    return variables;
  }

  // Deletes a variable. Calls that are using it finish with it. Fails with NOT_FOUND if there is
  // none.
  absl::Status remove(const std::string& container, const std::string& name);
  // Gives a variable an optimizer and counts the optimizer's state against the memory limit.
  absl::Status set_optimizer(StoredVariable& variable,
                             std::shared_ptr<const internal::UpdateRule> rule);

  // Returns all variables, sorted by container and name.
  std::vector<std::shared_ptr<StoredVariable>> list() const;
  // Returns the bytes of all variables and their optimizers' state.
  uint64_t bytes() const { return bytes_; }
  uint64_t memory_limit() const { return options_.memory_limit; }

 private:
  using Container = absl::flat_hash_map<std::string, std::shared_ptr<StoredVariable>>;

  static absl::Status no_such_handle(uint64_t handle);
  // Counts bytes against the memory limit, before they are allocated. `what` names their use in the
  // error.
  absl::Status reserve(const std::string& name, uint64_t bytes, const char* what);
  // Stops counting the bytes of a removed variable against the memory limit.
  void release(StoredVariable& variable);

  const VariableStoreOptions options_;
  std::atomic<uint64_t> bytes_ = 0;  // bytes that are reserved, whether allocated yet or not
  mutable SharedMutex mutex_;
  absl::flat_hash_map<std::string, Container> containers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<StoredVariable>> by_handle_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme
