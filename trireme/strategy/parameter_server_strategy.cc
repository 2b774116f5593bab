#include "trireme/strategy/parameter_server_strategy.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

const ClusterSpec& given(const ClusterSpec& spec) {
  if (!spec.empty()) return spec;
  throw Error(
      ErrorCode::kInvalidArgument,
      "no cluster was given: set TF_CONFIG, or give a cluster spec with worker and ps tasks");
}

ParameterServersOptions for_servers(const ParameterServerStrategyOptions& options) {
  if (options.replicas < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("a strategy with ", options.replicas,
                             " replicas on each worker; it needs at least one"));
  }
  return {.container = options.container,
          .partitioner = options.partitioner,
          .placement = options.placement,
          .connect_timeout = options.connect_timeout,
          .certs = options.certs};
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(const Cluster& cluster,
                                                 ParameterServerStrategyOptions options)
    : spec_(given(cluster.spec)),
      options_(std::move(options)),
      servers_(spec_, for_servers(options_)) {}

}  // namespace trireme
