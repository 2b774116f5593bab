#include "trireme/capture/device_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/graph/operators.h"

namespace trireme {
namespace {

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

// Makes a tensor of others. Views, writes in place and factories do not: they serve to make and to
// fill what variables start from.
bool computes(const c10::OperatorHandle& op) {
  bool takes_tensor = false;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.alias_info() != nullptr) return false;
    takes_tensor |= argument.type()->str().find("Tensor") != std::string::npos;
  }
  return takes_tensor && !internal::reads_only_metadata(op) && !internal::is_random(op);
}

// Outside of a captured function: throws Error for an operator that computes, in a scope that names
// a task.
class EagerWatch final : public internal::OperatorHook {
 public:
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override {
    const c10::impl::ExcludeDispatchKeyGuard not_again(internal::kCaptureKey);
    if (computes(op)) check_place(internal::operator_name(op));
    op.redispatchBoxed(internal::keys_below_hook(keys), stack);
  }

 private:
  static void check_place(const std::string& name) {
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

EagerWatch eager_watch;  // has no state

// Shared by the copies of one setter.
struct Turns {
  Mutex mutex;
  std::vector<uint64_t> bytes ABSL_GUARDED_BY(mutex);
  int next ABSL_GUARDED_BY(mutex) = 0;

  int take(const Placeable& variable, bool balance) {
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
    watch_ = std::make_unique<internal::HookScope>(&eager_watch);
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
  auto turns = std::make_shared<Turns>();
  {
    MutexLock lock(turns->mutex);
    turns->bytes.resize(std::max(tasks, 0));
  }
  return {"replica_device_setter",
          [tasks, worker, ps, turns, balance = options.balance_bytes](const Placeable& what) {
            if (tasks <= 0) return DeviceSpec();
            if (!what.is_variable) return worker;
            return merge(ps, DeviceSpec{.task = turns->take(what, balance)});
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
      if (device == DeviceSpec()) continue;
      request.device = merge(request.device, device);
      request.colocate_with = at::Tensor();
    }
    names.push_back(scope.name());
  }
  request.scopes = absl::StrJoin(names, " > ");
  return request;
}

OwnWork::OwnWork() {
  if (current_hook() == &eager_watch) unwatched_ = std::make_unique<HookScope>(nullptr);
}

OwnWork::~OwnWork() = default;

}  // namespace internal
}  // namespace trireme
