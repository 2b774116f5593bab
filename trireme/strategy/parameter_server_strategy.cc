#include "trireme/strategy/parameter_server_strategy.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/data/rebatch.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace {

// Returns `spec`, or throws Error if it is empty.
const ClusterSpec& require_cluster(const ClusterSpec& spec) {
  if (!spec.empty()) return spec;
  throw Error(
      ErrorCode::kInvalidArgument,
      "no cluster was given; set TF_CONFIG, or pass a cluster spec with worker and ps tasks");
}

ParameterServersOptions servers_options(const ParameterServerStrategyOptions& options) {
  if (options.replicas < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("a strategy cannot have ", options.replicas,
                             " replicas on each worker; it needs at least one"));
  }
  return {.job = options.job,
          .resume = options.resume,
          .keep = options.keep,
          .lease = options.lease,
          .container = options.container,
          .partitioner = options.partitioner,
          .placement = options.placement,
          .connect_timeout = options.connect_timeout,
          .certs = options.certs,
          .largest_whole_gradient = options.largest_whole_gradient};
}

// The tensors of a distributed module and those of a local one with the same names.
struct ModulePair {
  internal::VariableRecords variables;
  std::vector<at::Tensor> local;
};

[[noreturn]] void throw_different(const std::string& name, const std::string& how) {
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("'", name, "' ", how,
                           "; pull() and push() need a local module of the same structure"));
}

std::string type_of(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), " ", format_shape(tensor.sizes()));
}

void add_pairs(const torch::OrderedDict<std::string, at::Tensor>& distributed,
               const torch::OrderedDict<std::string, at::Tensor>& local,
               const internal::ParameterServerBackend& backend, ModulePair& pair) {
  for (const auto& item : local) {
    if (item.value().defined() && !distributed.contains(item.key())) {
      throw_different(item.key(), "is in the local module only");
    }
  }
  for (const auto& item : distributed) {
    if (!item.value().defined()) continue;
    const auto variable = internal::find_variable(item.value());
    if (variable == nullptr || variable->backend.get() != &backend) {
      throw Error(
          ErrorCode::kInvalidArgument,
          absl::StrCat("'", item.key(),
                       "' is not on the parameter servers of this strategy; make the module "
                       "with strategy.distribute()"));
    }
    const at::Tensor* other = local.find(item.key());
    if (other == nullptr || !other->defined()) {
      throw_different(item.key(), "is not in the local module");
    }
    if (type_of(*other) != type_of(item.value())) {
      throw_different(item.key(),
                      absl::StrCat("is ", type_of(item.value()), " in the distributed module and ",
                                   type_of(*other), " in the local one"));
    }
    pair.variables.push_back(variable);
    pair.local.push_back(*other);
  }
}

ModulePair pair_of(const torch::nn::Module& module, const torch::nn::Module& local,
                   const internal::ParameterServerBackend& backend) {
  ModulePair pair;
  add_pairs(module.named_parameters(), local.named_parameters(), backend, pair);
  add_pairs(module.named_buffers(), local.named_buffers(), backend, pair);
  return pair;
}

// Throws Error in a captured function, whose replays would not copy again.
void check_outside_of_functions(const char* call) {
  if (!internal::is_capturing()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("strategy.", call,
                           "() copies once, during the capture, and not in "
                           "replays; call it outside of the function"),
              {"", absl::StrCat("function '", internal::captured_function(), "'")});
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(const Cluster& cluster,
                                                 ParameterServerStrategyOptions options)
    : spec_(require_cluster(cluster.spec)),
      options_(std::move(options)),
      servers_(spec_, servers_options(options_)) {}

void ParameterServerStrategy::pull_module(const torch::nn::Module& module,
                                          const torch::nn::Module& local) const {
  check_outside_of_functions("pull");
  const auto& backend = internal::Access<ParameterServers>::backend(servers_);
  ModulePair pair = pair_of(module, local, *backend);
  const std::vector<at::Tensor> values = backend->read_all(pair.variables);
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < values.size(); ++i) pair.local[i].copy_(values[i]);
}

void ParameterServerStrategy::push_module(const torch::nn::Module& module,
                                          const torch::nn::Module& local) const {
  check_outside_of_functions("push");
  const auto& backend = internal::Access<ParameterServers>::backend(servers_);
  const ModulePair pair = pair_of(module, local, *backend);
  backend->assign_all(pair.variables, pair.local);
}

DatasetCreator ParameterServerStrategy::distribute_dataset(const Dataset& dataset,
                                                           const DistributeOptions& options) const {
  return DatasetCreator(
      [dataset, shard = options.shard, replicas = options_.replicas](const InputContext& context) {
        return shard_dataset(internal::rebatch(dataset, 1, replicas, 0), shard, context);
      });
}

DatasetCreator ParameterServerStrategy::distribute_datasets_from_function(
    std::function<Dataset(const InputContext&)> dataset_function) const {
  return DatasetCreator(std::move(dataset_function));
}

}  // namespace trireme
