#pragma once

#include <memory>

#include "trireme/graph/plan.h"

// Ways to add up what the replicas of a step made, such as their gradients. Both return the graph
// itself if there is nothing to change, and are for graphs without transfers to other tasks.
namespace trireme::internal {

// For replicas with memories of their own: joins the operators that add up values into one for each
// bucket of 25 MiB, so that a bucket crosses from device to device at once. Only sums that follow
// each other directly, outside of replicas, are joined.
std::shared_ptr<const GraphData> bucket_sums(std::shared_ptr<const GraphData> graph);

// For replicas that share one memory: `a + mm(x, y)` becomes `a.addmm_(x, y)`, if `a` and the
// matrix product are those of two replicas and have no other use. This saves a tensor as large as
// the product, and the passes over it.
std::shared_ptr<const GraphData> accumulate_products(std::shared_ptr<const GraphData> graph);

}  // namespace trireme::internal
