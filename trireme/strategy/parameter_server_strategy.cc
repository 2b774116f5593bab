#include "trireme/strategy/parameter_server_strategy.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

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
  return {.container = options.container,
          .partitioner = options.partitioner,
          .placement = options.placement,
          .connect_timeout = options.connect_timeout,
          .certs = options.certs};
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(const Cluster& cluster,
                                                 ParameterServerStrategyOptions options)
    : spec_(require_cluster(cluster.spec)),
      options_(std::move(options)),
      servers_(spec_, servers_options(options_)) {}

}  // namespace trireme
