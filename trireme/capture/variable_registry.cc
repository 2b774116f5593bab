#include "trireme/capture/variable_registry.h"

#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
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

  std::shared_ptr<VariableRecord> add(NewVariable variable, bool owned_elsewhere, bool* made) {
    Forgotten forgotten;
    MutexLock lock(mutex_);
    std::shared_ptr<VariableRecord> record =
        by_tensor_[variable.tensor.unsafeGetTensorImpl()].lock();
    *made = record == nullptr;
    if (*made) {
      if (!by_name_[variable.name].expired()) forgotten = drop_forgotten();
      record = std::make_shared<VariableRecord>();
      record->name = variable.name;
      for (int i = 1; !by_name_[record->name].expired(); ++i) {
        record->name = absl::StrCat(variable.name, "_", i);
      }
      record->tensor = std::move(variable.tensor);
      record->trainable = variable.trainable;
      record->aggregation = variable.aggregation;
      record->slot_of = std::move(variable.slot_of);
      if (record->slot_of.empty() && !variable.in_program) record->backend = current_backend();
      // An optimizer's state is where its variable is.
      if (record->slot_of.empty() && record->backend == nullptr) {
        const DeviceRequest request = requested_device(
            {.is_variable = true, .name = record->name, .bytes = record->tensor.nbytes()});
        record->device = request.device.to_string();
        record->device_scopes = request.scopes;
      }
      by_name_[record->name] = record;
      by_tensor_[record->tensor.unsafeGetTensorImpl()] = record;
    }
    if (owned_elsewhere) kept_.insert(record);
    return record;
  }

  std::shared_ptr<VariableRecord> find(const at::Tensor& tensor) {
    MutexLock lock(mutex_);
    const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
    return found == by_tensor_.end() ? nullptr : found->second.lock();
  }

  std::vector<std::shared_ptr<VariableRecord>> all() {
    Forgotten forgotten;
    MutexLock lock(mutex_);
    forgotten = drop_forgotten();
    std::vector<std::shared_ptr<VariableRecord>> result;
    for (const auto& [name, weak] : by_name_) {
      if (auto record = weak.lock()) result.push_back(std::move(record));
    }
    return result;
  }

 private:
  // To be destroyed without the lock: with the last of its variables a backend ends, which takes
  // time.
  using Forgotten = std::vector<std::shared_ptr<VariableRecord>>;

  // Removes variables whose handles, or whose modules, are gone: nobody else holds them.
  Forgotten drop_forgotten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Forgotten forgotten;
    for (const auto& record : kept_) {
      if (record->tensor.use_count() == 1 && record.use_count() == 1) forgotten.push_back(record);
    }
    for (const auto& record : forgotten) {
      kept_.erase(record);
      by_name_.erase(record->name);
      by_tensor_.erase(record->tensor.unsafeGetTensorImpl());
    }
    std::erase_if(by_name_, [](const auto& entry) { return entry.second.expired(); });
    std::erase_if(by_tensor_, [](const auto& entry) { return entry.second.expired(); });
    return forgotten;
  }

  Mutex mutex_;
  // A record holds its tensor, so that an address stands for one tensor while the record lives.
  std::unordered_map<const void*, std::weak_ptr<VariableRecord>> by_tensor_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::weak_ptr<VariableRecord>> by_name_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<std::shared_ptr<VariableRecord>> kept_ ABSL_GUARDED_BY(mutex_);
};

std::shared_ptr<VariableRecord> add(NewVariable variable, bool owned_elsewhere) {
  bool made;
  auto record = Registry::instance().add(std::move(variable), owned_elsewhere, &made);
  if (made && record->backend != nullptr) record->backend->adopt(record);
  return record;
}

}  // namespace

bool VariableRecord::is_remote() const {
  return !device.empty() && internal::is_remote(DeviceSpec::parse(device));
}

std::shared_ptr<VariableRecord> add_variable(NewVariable variable) {
  return add(std::move(variable), /*owned_elsewhere=*/false);
}

std::shared_ptr<VariableRecord> add_owned_elsewhere(NewVariable variable) {
  return add(std::move(variable), /*owned_elsewhere=*/true);
}

std::shared_ptr<VariableRecord> find_variable(const at::Tensor& tensor) {
  return Registry::instance().find(tensor);
}

std::vector<std::shared_ptr<VariableRecord>> live_variables() {
  return Registry::instance().all();
}

}  // namespace trireme::internal
