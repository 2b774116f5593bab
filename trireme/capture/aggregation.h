#pragma once

namespace trireme {

// What becomes of the values that several replicas (strategy.run()) assign to one variable.
enum class Aggregation {
  kNone,  // assigning there is an error
  kSum,
  kMean,
  kOnlyFirstReplica,
};

}  // namespace trireme
