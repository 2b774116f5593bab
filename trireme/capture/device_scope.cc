// Device scopes are a stack per thread. The stack is read in two places: when an operator is
// recorded, and when a variable is made (requested_device). The specs in it merge from the
// outermost to the innermost. A colocation replaces the device so far, until an inner scope names a
// device.
//
// Outside of a capture LibTorch runs an operator where its tensors are. What a variable's read()
// returns is on the device that local scopes name (eager_device), and so operators follow. Nothing
// obeys a scope that names a task. So the outermost scope that names a task or a GPU installs an
// operator hook (EagerDeviceCheck): it rejects operators that compute in the scope of a task, and
// warns of one whose tensors are not on the GPU. During a capture the recorder is the hook, and in
// eager mode (run_eagerly) scopes are ignored on purpose; in both cases the check is not installed.
#include "trireme/capture/device_scope.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"
#include "trireme/base/warn_once.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/eager_mode.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/graph/operators.h"
#include "trireme/placement/local_devices.h"

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
// Number of SuspendDeviceChecks of the thread: scopes do not concern what Trireme itself reads.
thread_local int suspended_checks = 0;

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

// Returns true if the operator is told where its result belongs, or only copies a tensor.
bool places_or_copies(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return op.schema().argumentIndexWithName("device").has_value() || name == "aten::clone" ||
         name == "aten::_local_scalar_dense";
}

// Returns the device of the operator's tensors: an accelerator, if one of them is on one; nullopt
// if it has none.
std::optional<c10::Device> device_of_tensors(const c10::OperatorHandle& op,
                                             const torch::jit::Stack& stack) {
  std::optional<c10::Device> device;
  for (const c10::IValue& argument : torch::jit::last(stack, op.schema().arguments().size())) {
    const auto note = [&](const at::Tensor& tensor) {
      if (tensor.defined() && (!device || device->is_cpu())) device = tensor.device();
    };
    if (argument.isTensor()) note(argument.toTensor());
    if (argument.isTensorList()) std::ranges::for_each(argument.toTensorVector(), note);
  }
  return device;
}

// Checks operators that compute outside of a captured function, in a scope that names a task or a
// GPU. Stateless.
class EagerDeviceCheck final : public internal::OperatorHook {
 public:
  bool only_checks() const override { return true; }
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override {
    const c10::impl::ExcludeDispatchKeyGuard no_reentry(internal::kCaptureKey);
    DeviceSpec device;
    for (const ScopeEntry& scope : entries) {
      if (!scope.setter) device = merge(device, scope.device);
    }
    if (internal::is_remote(device)) {
      if (computes(op)) reject(op, device);
    } else {
      check_hardware(op, device, *stack);
    }
    op.redispatchBoxed(internal::keys_below_hook(keys), stack);
  }

 private:
  [[noreturn]] static void reject(const c10::OperatorHandle& op, const DeviceSpec& device) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("operator '", internal::operator_name(op),
                             "' in the scope of device '", device.to_string(),
                             "' would run in this program: outside of a captured function only "
                             "local devices can be named. Put it into a function and run that with "
                             "tr::Session, or compute it before the scope"));
  }

  static void check_hardware(const c10::OperatorHandle& op, const DeviceSpec& device,
                             const torch::jit::Stack& stack) {
    // A backward pass goes back to the devices that its values came from.
    if (torch::autograd::get_current_graph_task_id() != -1) return;
    const std::optional<c10::Device> there = device_of_tensors(op, stack);
    if (!there || !computes(op) || places_or_copies(op)) return;
    const std::optional<c10::Device> wanted = internal::eager_device();
    if (!wanted || *there == *wanted) return;
    internal::warn_once(
        absl::StrCat("operator '", internal::operator_name(op), "' in the scope of device '",
                     device.to_string(), "' ran on ", there->str(),
                     ", where its tensors are: outside of a captured function a scope moves what "
                     "tr::Variable::read() returns, and no other tensor. Move it with to(), or put "
                     "the operator into a function"),
        absl::StrCat("eager operator on ", device.to_string()));
  }
};

EagerDeviceCheck eager_device_check;

bool needs_check(const DeviceSpec& device) {
  return internal::is_remote(device) || device.type == DeviceType::kGpu ||
         (device.type == DeviceType::kCpu && internal::accelerator_count() > 0);
}

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
  if (needs_check(device) && internal::current_hook() == nullptr && !runs_eagerly()) {
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

std::optional<c10::Device> eager_device() {
  if (entries.empty() || suspended_checks > 0) return std::nullopt;
  DeviceSpec device;
  at::Tensor with;
  for (const ScopeEntry& scope : entries) {
    if (scope.setter) continue;
    device = merge(device, scope.device);
    if (scope.device != DeviceSpec()) with = at::Tensor();
    if (scope.colocate_with.defined()) with = scope.colocate_with;
  }
  if (with.defined()) return with.device();
  if (is_remote(device) || !device.type) return std::nullopt;
  const int index = device.index.value_or(0);
  const DeviceList devices = program_device_list();
  if (devices.has(*device.type, index)) return hardware_of(*device.type, index);
  const DeviceSpec used = nearest(device, devices);
  warn_once(absl::StrCat("device '", device.to_string(), "', named by scope ", device_scope_names(),
                         ", does not exist; using '", used.to_string(), "' (",
                         describe_accelerators(), ")"));
  return hardware_of(*used.type, *used.index);
}

std::string device_scope_names() {
  return absl::StrJoin(entries, " > ", [](std::string* names, const ScopeEntry& scope) {
    absl::StrAppend(names, scope.name());
  });
}

SuspendDeviceCheck::SuspendDeviceCheck() {
  ++suspended_checks;
  if (current_hook() == &eager_device_check) suspended_hook_ = std::make_unique<HookScope>(nullptr);
}

SuspendDeviceCheck::~SuspendDeviceCheck() {
  --suspended_checks;
}

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
