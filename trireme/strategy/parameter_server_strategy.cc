#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme {

ParameterServerStrategy::ParameterServerStrategy(const Cluster& cluster,
                                                 ParameterServerStrategyOptions options)
    : spec_(cluster.spec), options_(std::move(options)), servers_(spec_, options_) {}

}  // namespace trireme
