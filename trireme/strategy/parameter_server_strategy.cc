#include "trireme/strategy/parameter_server_strategy.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/cluster/strategy_tasks.h"
#include "trireme/data/rebatch.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/rpc/credentials.h"
#include "trireme/strategy/module_pairs.h"
#include "trireme/strategy/replica_count.h"

namespace trireme {
namespace {

// Returns the tasks of `cluster`. Throws Error if there are none, or if this process does not train
// on parameter servers.
const ClusterSpec& require_cluster(const Cluster& cluster) {
  if (cluster.is_local()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "no cluster was given; set TF_CONFIG, or pass a cluster spec with worker and ps tasks");
  }
  internal::check_trains(cluster, "ps");
  return cluster.spec;
}

ParameterServerStrategyOptions with_certs_of(const Cluster& cluster,
                                             ParameterServerStrategyOptions options) {
  if (options.certs.empty()) options.certs = cluster.certs;
  return options;
}

ParameterServersOptions servers_options(const ParameterServerStrategyOptions& options) {
  if (options.replicas.value_or(1) < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("a strategy cannot have ", *options.replicas,
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
          .largest_whole_gradient = options.largest_whole_gradient,
          .shared_memory = options.shared_memory};
}

// The tensors of a distributed module and those of a local one with the same names.
struct ModulePair {
  internal::VariableRecords variables;
  std::vector<at::Tensor> local;
};

ModulePair pair_of(const torch::nn::Module& module, const torch::nn::Module& local,
                   const internal::ParameterServerBackend& backend) {
  ModulePair pair;
  for (const auto& [name, distributed, other] : internal::pair_tensors(module, local)) {
    const auto variable = internal::find_variable(distributed);
    if (variable == nullptr || variable->backend.get() != &backend) {
      throw Error(
          ErrorCode::kInvalidArgument,
          absl::StrCat("'", name,
                       "' is not on the parameter servers of this strategy; make the module "
                       "with strategy.distribute()"));
    }
    pair.variables.push_back(variable);
    pair.local.push_back(other);
  }
  return pair;
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(const Cluster& cluster,
                                                 ParameterServerStrategyOptions options)
    : spec_(require_cluster(cluster)),
      options_(with_certs_of(cluster, std::move(options))),
      servers_(spec_, servers_options(options_)),
      replicas_(std::make_shared<internal::ReplicaCount>(
          options_.replicas, spec_, value_or_throw(Credentials::of_program(options_.certs)),
          options_.connect_timeout)) {}

int ParameterServerStrategy::num_replicas_in_sync() const {
  return replicas_->get();
}

void ParameterServerStrategy::pull_module(const torch::nn::Module& module,
                                          const torch::nn::Module& local) const {
  internal::check_outside_of_functions("pull");
  const auto& backend = internal::Access<ParameterServers>::backend(servers_);
  ModulePair pair = pair_of(module, local, *backend);
  const std::vector<at::Tensor> values = backend->read_all(pair.variables);
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < values.size(); ++i) pair.local[i].copy_(values[i]);
}

void ParameterServerStrategy::push_module(const torch::nn::Module& module,
                                          const torch::nn::Module& local) const {
  internal::check_outside_of_functions("push");
  const auto& backend = internal::Access<ParameterServers>::backend(servers_);
  const ModulePair pair = pair_of(module, local, *backend);
  backend->assign_all(pair.variables, pair.local);
}

DatasetCreator ParameterServerStrategy::distribute_dataset(const Dataset& dataset,
                                                           const DistributeOptions& options) const {
  return DatasetCreator(
      [dataset, shard = options.shard, replicas = replicas_](const InputContext& context) {
        return shard_dataset(internal::rebatch(dataset, 1, replicas->get(), 0), shard, context);
      });
}

DatasetCreator ParameterServerStrategy::distribute_datasets_from_function(
    std::function<Dataset(const InputContext&)> dataset_function) const {
  return DatasetCreator(std::move(dataset_function));
}

}  // namespace trireme
