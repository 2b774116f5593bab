#pragma once

namespace trireme {

// How the values that several replicas (strategy.run()) assign to one variable are combined.
enum class Aggregation {
  kNone,  // assigning there is an error
  kSum,
  kMean,
  kOnlyFirstReplica,
};

}  // namespace trireme
