// The registry finds variables by tensor and by name through weak references. A variable made by
// the program lives as long as its handles (tr::Variable). The parameters of a module have no
// handle that anybody keeps, so the registry holds their records itself, and releases a record once
// it holds the last reference to both the record and the tensor: then the module is gone. It looks
// for such records lazily, when all variables are listed or a name is taken.
//
// Records are destroyed, and backends called, without the lock, since both may take long.
#include "trireme/capture/variable_registry.h"

#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/device_scope.h"
#include "trireme/capture/variable_backend.h"

namespace trireme::internal {
namespace {

class Registry {
 public:
  static Registry& instance() {
    static auto* registry = new Registry;
    return *registry;
  }

  std::shared_ptr<VariableRecord> add(NewVariable variable, bool externally_owned, bool* made) {
    ReleasedRecords released;
    MutexLock lock(mutex_);
    std::shared_ptr<VariableRecord> record =
        by_tensor_[variable.tensor.unsafeGetTensorImpl()].lock();
    *made = record == nullptr;
    if (*made) {
      const bool scoped = !variable.backend;
      if (!by_name_[variable.name].expired()) released = remove_released();
      record = std::make_shared<VariableRecord>();
      record->name = variable.name;
      for (int i = 1; !by_name_[record->name].expired(); ++i) {
        record->name = absl::StrCat(variable.name, "_", i);
      }
      record->tensor = std::move(variable.tensor);
      record->trainable = variable.trainable;
      record->aggregation = variable.aggregation;
      record->slot_of = std::move(variable.slot_of);
      record->backend = variable.backend ? *variable.backend : current_backend();
      if (record->backend == nullptr) {
        set_device(*record);
      } else if (scoped && record->slot_of.empty()) {
        record->backend_device = requested_for(*record).device;
        record->backend->check_device(*record);
      }
      by_name_[record->name] = record;
      by_tensor_[record->tensor.unsafeGetTensorImpl()] = record;
    }
    if (externally_owned) kept_.insert(record);
    return record;
  }

  std::shared_ptr<VariableRecord> find(const at::Tensor& tensor) {
    MutexLock lock(mutex_);
    const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
    return found == by_tensor_.end() ? nullptr : found->second.lock();
  }

  std::vector<std::shared_ptr<VariableRecord>> all() {
    ReleasedRecords released;
    MutexLock lock(mutex_);
    released = remove_released();
    std::vector<std::shared_ptr<VariableRecord>> result;
    for (const auto& [name, weak] : by_name_) {
      if (auto record = weak.lock()) result.push_back(std::move(record));
    }
    return result;
  }

 private:
  // Declared before the lock in each function, so that it is destroyed after the lock is released:
  // a backend may be destroyed with its last variable, which takes time.
  using ReleasedRecords = std::vector<std::shared_ptr<VariableRecord>>;

  static DeviceRequest requested_for(const VariableRecord& record) {
    return requested_device(
        {.is_variable = true, .name = record.name, .bytes = record.tensor.nbytes()});
  }

  // An optimizer's state is placed with its variable, also in a graph that does not use the
  // variable: it has one place only.
  void set_device(VariableRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!record.slot_of.empty()) {
      const auto found = by_name_.find(record.slot_of);
      const auto owner = found == by_name_.end() ? nullptr : found->second.lock();
      if (owner == nullptr) return;
      record.device = owner->device;
      record.device_scopes = owner->device_scopes;
      return;
    }
    const DeviceRequest request = requested_for(record);
    record.device = request.device.to_string();
    record.device_scopes = request.scopes;
  }

  // Removes the variables whose handles, or whose modules, are gone. Returns the records that the
  // registry held itself.
  ReleasedRecords remove_released() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ReleasedRecords released;
    for (const auto& record : kept_) {
      if (record->tensor.use_count() == 1 && record.use_count() == 1) released.push_back(record);
    }
    for (const auto& record : released) {
      kept_.erase(record);
      by_name_.erase(record->name);
      by_tensor_.erase(record->tensor.unsafeGetTensorImpl());
    }
    std::erase_if(by_name_, [](const auto& entry) { return entry.second.expired(); });
    std::erase_if(by_tensor_, [](const auto& entry) { return entry.second.expired(); });
    return released;
  }

  Mutex mutex_;
  // A record holds its tensor, so an address means one tensor as long as the record lives.
  std::unordered_map<const void*, std::weak_ptr<VariableRecord>> by_tensor_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::weak_ptr<VariableRecord>> by_name_ ABSL_GUARDED_BY(mutex_);
  // Records of externally owned tensors.
  std::unordered_set<std::shared_ptr<VariableRecord>> kept_ ABSL_GUARDED_BY(mutex_);
};

// Adds a variable and tells its backend about it, outside of the registry's lock.
std::shared_ptr<VariableRecord> add(NewVariable variable, bool externally_owned) {
  bool made;
  auto record = Registry::instance().add(std::move(variable), externally_owned, &made);
  if (made && record->backend != nullptr) record->backend->adopt(record);
  return record;
}

}  // namespace

bool VariableRecord::is_remote() const {
  return !device.empty() && internal::is_remote(DeviceSpec::parse(device));
}

std::shared_ptr<VariableRecord> add_variable(NewVariable variable) {
  return add(std::move(variable), /*externally_owned=*/false);
}

std::shared_ptr<VariableRecord> add_externally_owned(NewVariable variable) {
  return add(std::move(variable), /*externally_owned=*/true);
}

std::shared_ptr<VariableRecord> find_variable(const at::Tensor& tensor) {
  return Registry::instance().find(tensor);
}

std::vector<std::shared_ptr<VariableRecord>> live_variables() {
  return Registry::instance().all();
}

std::string held_elsewhere(const VariableRecord& variable) {
  return variable.holders.describe();
}

}  // namespace trireme::internal
