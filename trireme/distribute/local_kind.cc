#include "trireme/distribute/local_kind.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/data/rebatch.h"
#include "trireme/distribute/program_runner.h"
#include "trireme/distribute/worker_process.h"
#include "trireme/placement/local_devices.h"
#include "trireme/strategy/module_pairs.h"
#include "trireme/strategy/open_scope.h"

namespace trireme::internal {
namespace {

using Specs = std::vector<DeviceSpec>;

// Lets variables be on the devices of the strategy.
struct LocalScope {
  OpenScope noted;
  BackendScope backend;
};

// Returns the device that a name stands for: "/gpu:1" or "gpu:1". Throws Error unless this machine
// has it. Any number of logical CPUs may be named.
DeviceSpec device_named(const std::string& name, const char* option) {
  const DeviceSpec spec = DeviceSpec::parse(name);
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("device '", name, "' in .", option, " ", why));
  };
  if (is_remote(spec)) {
    fail(
        "is on another task; this strategy trains on the devices of its own machine, such as "
        "'/gpu:0'");
  }
  if (!spec.type || !spec.index) fail("has no type and number, such as '/gpu:0' or '/cpu:1'");
  const int gpus = accelerator_count();
  if (*spec.type == DeviceType::kGpu && *spec.index >= gpus) {
    fail(gpus == 0
             ? std::string("does not exist: LibTorch finds no GPU on this machine. Name CPUs, "
                           "'/cpu:0' and '/cpu:1' for two replicas")
             : absl::StrCat("does not exist: LibTorch finds ", gpus,
                            " GPUs on this machine, numbered from 0"));
  }
  return spec;
}

// Returns the devices of the replicas: those that are named, or else all GPUs, or one CPU.
Specs compute_devices(const std::vector<std::string>& names, const char* option) {
  Specs devices;
  for (const std::string& name : names) {
    devices.push_back(device_named(name, option));
    if (std::ranges::count(devices, devices.back()) == 1) continue;
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("device '", name, "' is named twice in .", option,
                             "; each replica needs a device of its own"));
  }
  for (int i = 0; names.empty() && i < accelerator_count(); ++i) {
    devices.push_back({.type = DeviceType::kGpu, .index = i});
  }
  if (devices.empty()) devices.push_back({.type = DeviceType::kCpu, .index = 0});
  return devices;
}

std::shared_ptr<VariableRecord> variable_of(const TensorPair& pair, const LocalBackend& backend) {
  auto variable = find_variable(pair.distributed);
  if (variable != nullptr && variable->backend.get() == &backend) return variable;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("'", pair.name,
                           "' is not a variable of this strategy; make the module with "
                           "strategy.distribute()"));
}

// Throws Error unless all workers have the same number of replicas.
void check_same_replicas(WorkerGroup& workers, int replicas) {
  const at::Tensor counts =
      workers.concatenate(at::full({1}, replicas, at::kLong), "number of replicas");
  for (int worker = 0; worker < workers.workers(); ++worker) {
    const int64_t count = counts[worker].item<int64_t>();
    if (count == replicas) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("worker ", workers.worker(), " has ", replicas, " replicas, but worker ",
                     worker, " has ", count, "; give all workers the same number of .devices"));
  }
}

}  // namespace

LocalKind::LocalKind(std::string name, std::shared_ptr<LocalBackend> backend,
                     std::shared_ptr<WorkerGroup> workers)
    : name_(std::move(name)), workers_(std::move(workers)), backend_(std::move(backend)) {}

// Variables of nets that are gone are freed when the registry looks for them. Until then they hold
// the backend, and so the group, which this worker must leave while its server can still say so.
LocalKind::~LocalKind() {
  if (workers_ != nullptr) (void)live_variables();
}

std::shared_ptr<void> LocalKind::open_scope() {
  return std::shared_ptr<LocalScope>(
      new LocalScope{OpenScope(shared_from_this()), BackendScope(backend_)});
}

void LocalKind::pull(const torch::nn::Module& module, const torch::nn::Module& local) {
  check_outside_of_functions("pull");
  const at::NoGradGuard no_gradients;
  for (const TensorPair& pair : pair_tensors(module, local)) {
    at::Tensor(pair.local).copy_(backend_->read(*variable_of(pair, *backend_)));
  }
}

void LocalKind::push(const torch::nn::Module& module, const torch::nn::Module& local) {
  check_outside_of_functions("push");
  for (const TensorPair& pair : pair_tensors(module, local)) {
    backend_->change(*variable_of(pair, *backend_), VariableHolder::Change::kAssign,
                     pair.local.detach());
  }
}

DatasetCreator LocalKind::distribute_dataset(const Dataset& dataset,
                                             const DistributeOptions& options) {
  if (workers_ != nullptr) {
    return DatasetCreator(
        [dataset, shard = options.shard, replicas = replicas()](const InputContext& context) {
          return shard_dataset(
              rebatch(dataset, context.num_input_pipelines, replicas, context.input_pipeline_id),
              shard, context);
        });
  }
  return DatasetCreator([divided = divide_batches(dataset, replicas()),
                         shard = options.shard](const InputContext& context) {
    return shard_dataset(divided, shard, context);
  });
}

Shard LocalKind::default_shard() const {
  return workers_ != nullptr ? Shard::kAuto : Shard::kOff;
}

DatasetCreator LocalKind::distribute_function(
    std::function<Dataset(const InputContext&)> dataset_function) {
  return DatasetCreator(std::move(dataset_function));
}

std::shared_ptr<StepRunner> LocalKind::runner() {
  return make_program_runner(replicas(), workers_);
}

std::shared_ptr<LocalKind> make_mirrored_kind(const MirroredStrategyOptions& options) {
  const Specs devices = compute_devices(options.devices, "devices");
  return std::make_shared<LocalKind>("mirrored", std::make_shared<LocalBackend>(devices, devices));
}

std::shared_ptr<LocalKind> make_central_storage_kind(const CentralStorageStrategyOptions& options) {
  const Specs devices = compute_devices(options.compute_devices, "compute_devices");
  const bool only_gpu = devices.size() == 1 && *devices[0].type == DeviceType::kGpu;
  const DeviceSpec cpu{.type = DeviceType::kCpu, .index = 0};
  const DeviceSpec home = options.parameter_device.empty()
                              ? (only_gpu ? devices[0] : cpu)
                              : device_named(options.parameter_device, "parameter_device");
  return std::make_shared<LocalKind>("central_storage",
                                     std::make_shared<LocalBackend>(devices, Specs{home}));
}

std::shared_ptr<LocalKind> make_multi_worker_mirrored_kind(
    const Cluster& cluster, const MultiWorkerMirroredStrategyOptions& options) {
  const Specs devices = compute_devices(options.devices, "devices");
  const std::shared_ptr<WorkerGroup> workers = join_workers(cluster, options);
  if (workers != nullptr) check_same_replicas(*workers, static_cast<int>(devices.size()));
  return std::make_shared<LocalKind>(
      "multi_worker_mirrored", std::make_shared<LocalBackend>(devices, devices, workers), workers);
}

}  // namespace trireme::internal
