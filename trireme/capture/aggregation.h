#pragma once

namespace trireme {

// How the values that several replicas (strategy.run()) assign to one variable are combined into
// the one value that the variable gets.
enum class Aggregation {
  kNone,              // assigning in a replica is an error
  kSum,               // the sum over the replicas
  kMean,              // the mean over the replicas
  kOnlyFirstReplica,  // the value of replica 0; the others are ignored
};

}  // namespace trireme
