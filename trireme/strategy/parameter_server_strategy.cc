#include "trireme/strategy/parameter_server_strategy.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

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
    : spec_(cluster.spec), options_(std::move(options)), servers_(spec_, for_servers(options_)) {}

}  // namespace trireme
