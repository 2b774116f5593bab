// Device scopes are a stack per thread. The stack is read in two places: when an operator is
// recorded, and when a variable is made (requested_device). The specs in it merge from the
// outermost to the innermost. A colocation replaces the device so far, until an inner scope names a
// device.
//
// Outside of a capture nothing would obey a scope that names a task, since operators run in the
// program. So the outermost such scope installs an operator hook that rejects operators that
// compute (EagerDeviceCheck). During a capture the recorder is the hook, and in eager mode
// (run_eagerly) scopes are ignored on purpose; in both cases the check is not installed.
#include "trireme/capture/device_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/graph/operators.h"

namespace trireme {
namespace {

// One scope on the stack: a setter, a colocation, or a device if neither is set.
struct ScopeEntry {
  DeviceSpec device;
  std::shared_ptr<const DeviceSetter> setter;
  at::Tensor colocate_with;

  std::string name() const {
    if (setter) return setter->name;
    if (colocate_with.defined()) return "colocation";
    return absl::StrCat("'", device.to_string(), "'");
  }
};

thread_local std::vector<ScopeEntry> entries;

// Returns true if the operator computes a new tensor from others. Views, writes in place and
// factories do not count: programs use them to make and fill the tensors that variables start from.
bool computes(const c10::OperatorHandle& op) {
  bool takes_tensor = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.alias_info() != nullptr) return false;
    takes_tensor |= argument.type()->str().find("Tensor") != std::string::npos;
  }
  return takes_tensor && !internal::reads_only_metadata(op) && !internal::is_random(op);
}

// Rejects operators that compute, in a scope that names a job or a task, outside of a captured
// function. Stateless.
class EagerDeviceCheck final : public internal::OperatorHook {
 public:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override {
    const c10::impl::ExcludeDispatchKeyGuard no_reentry(internal::kCaptureKey);
    if (computes(op)) check_device(internal::operator_name(op));
    op.redispatchBoxed(internal::keys_below_hook(keys), stack);
  }

 private:
  static void check_device(const std::string& name) {
    DeviceSpec device;
    for (const ScopeEntry& scope : entries) {
      if (!scope.setter) device = merge(device, scope.device);
    }
    if (!internal::is_remote(device)) return;
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("operator '", name, "' in the scope of device '", device.to_string(),
                             "' would run in this program: outside of a captured function only "
                             "local devices can be named. Put it into a function and run that with "
                             "tr::Session, or compute it before the scope"));
  }
};

EagerDeviceCheck eager_device_check;

// Chooses ps tasks for variables, in turn or by size. Shared by the copies of one setter.
// Thread-safe.
struct TaskRotation {
  Mutex mutex;
  std::vector<uint64_t> bytes ABSL_GUARDED_BY(mutex);  // placed so far, by task
  int next ABSL_GUARDED_BY(mutex) = 0;

  int next_task(const Placeable& variable, bool balance) {
    MutexLock lock(mutex);
    int task = next;
    if (balance) {
      task = static_cast<int>(std::ranges::min_element(bytes) - bytes.begin());
    }
    next = (task + 1) % static_cast<int>(bytes.size());
    bytes[task] += variable.bytes;
    return task;
  }
};

}  // namespace

DeviceScope::DeviceScope(const std::string& device) : DeviceScope(DeviceSpec::parse(device)) {}

DeviceScope::DeviceScope(const DeviceSpec& device) {
  entries.push_back({device, nullptr, {}});
  if (internal::is_remote(device) && internal::current_hook() == nullptr && !runs_eagerly()) {
    device_check_ = std::make_unique<internal::HookScope>(&eager_device_check);
  }
}

DeviceScope::DeviceScope(DeviceSetter setter) {
  entries.push_back({{}, std::make_shared<const DeviceSetter>(std::move(setter)), {}});
}

DeviceScope::~DeviceScope() {
  entries.pop_back();
}

ColocationScope::ColocationScope(const at::Tensor& with) {
  entries.push_back({{}, nullptr, with});
}

ColocationScope::~ColocationScope() {
  entries.pop_back();
}

DeviceSetter replica_device_setter(const ReplicaDeviceSetterOptions& options) {
  const int tasks = options.ps_tasks > 0 ? options.ps_tasks : options.cluster.num_tasks("ps");
  const DeviceSpec worker = DeviceSpec::parse(options.worker_device),
                   ps = DeviceSpec::parse(options.ps_device);
  auto rotation = std::make_shared<TaskRotation>();
  {
    MutexLock lock(rotation->mutex);
    rotation->bytes.resize(std::max(tasks, 0));
  }
  return {"replica_device_setter",
          [tasks, worker, ps, rotation, balance = options.balance_bytes](const Placeable& what) {
            if (tasks <= 0) return DeviceSpec();
            if (!what.is_variable) return worker;
            return merge(ps, DeviceSpec{.task = rotation->next_task(what, balance)});
          }};
}

namespace internal {

DeviceRequest requested_device(const Placeable& what) {
  DeviceRequest request;
  std::vector<std::string> names;
  for (const ScopeEntry& scope : entries) {
    if (scope.colocate_with.defined()) {
      request.colocate_with = scope.colocate_with;
    } else {
      const DeviceSpec device = scope.setter ? scope.setter->choose(what) : scope.device;
      // A setter without an opinion changes nothing and is not named in explanations.
      if (device == DeviceSpec()) continue;
      request.device = merge(request.device, device);
      request.colocate_with = at::Tensor();
    }
    names.push_back(scope.name());
  }
  request.scopes = absl::StrJoin(names, " > ");
  return request;
}

SuspendDeviceCheck::SuspendDeviceCheck() {
  if (current_hook() == &eager_device_check) suspended_hook_ = std::make_unique<HookScope>(nullptr);
}

SuspendDeviceCheck::~SuspendDeviceCheck() = default;

size_t device_scope_count() {
  return entries.size();
}

SuspendDeviceScopes::SuspendDeviceScopes(size_t keep)
    : suspended_(std::make_shared<std::vector<ScopeEntry>>(entries)) {
  entries.resize(keep);
}

SuspendDeviceScopes::~SuspendDeviceScopes() {
  entries = std::move(*static_cast<std::vector<ScopeEntry>*>(suspended_.get()));
}

}  // namespace internal
}  // namespace trireme
