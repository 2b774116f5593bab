#include "trireme/graph/device_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/graph/function.h"
#include "trireme/graph/recorder.h"

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

thread_local bool watching = false;

void watch_eager_operators(bool watch) {
  watching = watch;
  c10::impl::tls_set_dispatch_key_included(internal::kCaptureKey, watch);
}

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

DeviceScope::DeviceScope(const DeviceSpec& device)
    : watches_(internal::is_remote(device) && !internal::is_capturing() && !watching &&
               !runs_eagerly()) {
  entries.push_back({device, nullptr, {}});
  if (watches_) {
    internal::register_capture();
    watch_eager_operators(true);
  }
}

DeviceScope::DeviceScope(DeviceSetter setter) : watches_(false) {
  entries.push_back({{}, std::make_shared<const DeviceSetter>(std::move(setter)), {}});
}

DeviceScope::~DeviceScope() {
  entries.pop_back();
  if (watches_) watch_eager_operators(false);
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

bool watches_eager_operators() {
  return watching;
}

void check_eager_operator(const std::string& name, bool computes) {
  if (!computes) return;
  DeviceSpec device;
  for (const ScopeEntry& scope : entries) {
    if (!scope.setter) device = merge(device, scope.device);
  }
  if (!is_remote(device)) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("operator '", name, "' in the scope of device '", device.to_string(),
                           "' would run in this program: outside of a captured function only "
                           "local devices can be named. Put it into a function and run that with "
                           "tr::Session, or compute it before the scope"));
}

OwnWork::OwnWork() : watched_(watching) {
  if (watched_) watch_eager_operators(false);
}

OwnWork::~OwnWork() {
  if (watched_) watch_eager_operators(true);
}

}  // namespace internal
}  // namespace trireme
