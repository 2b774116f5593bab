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
  // Of variables and their optimizers' state; 0: none. What exceeds it is refused.
  uint64_t memory_limit = 0;
  // Of pushes that are arriving or being applied, and of copies that pulls are sending: beyond it
  // callers wait. Calls of less than a frame do not count.
  uint64_t push_bytes = uint64_t{512} << 20;
  uint64_t pull_bytes = uint64_t{512} << 20;
};

// The variables of one server, by container and name, and by the handle that calls of every step
// use. Thread-safe; variables may outlive it.
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
    bool is_new = false;
  };
  // As create(), of that shape, with contents that `fill` writes. Memory is taken only if there is
  // no such variable yet, and is refused beyond the limit.
  absl::StatusOr<Created> make(const std::string& container, const std::string& name,
                               const internal::TensorShape& shape,
                               const std::function<void(at::Tensor&)>& fill);

  absl::StatusOr<std::shared_ptr<StoredVariable>> lookup(const std::string& container,
                                                         const std::string& name);
  // In the order of the handles. NOT_FOUND if one means nothing.
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

  // NOT_FOUND if there is none.
  absl::Status remove(const std::string& container, const std::string& name);
  absl::Status set_optimizer(StoredVariable& variable,
                             std::shared_ptr<const internal::UpdateRule> rule);

  // By container and name.
  std::vector<std::shared_ptr<StoredVariable>> list() const;
  uint64_t bytes() const { return bytes_; }
  uint64_t memory_limit() const { return options_.memory_limit; }

 private:
  using Container = absl::flat_hash_map<std::string, std::shared_ptr<StoredVariable>>;

  static absl::Status no_such_handle(uint64_t handle);
  absl::Status reserve(const std::string& name, uint64_t bytes, const char* what);
  void release(StoredVariable& variable);

  const VariableStoreOptions options_;
  std::atomic<uint64_t> bytes_ = 0;  // taken or about to be
  mutable SharedMutex mutex_;
  absl::flat_hash_map<std::string, Container> containers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<StoredVariable>> by_handle_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme
