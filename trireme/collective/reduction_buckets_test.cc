#include "trireme/collective/reduction_buckets.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/collective/step_reductions.h"
#include "trireme/function/worker_values.h"

namespace trireme::internal {
namespace {

using Names = std::vector<std::string>;

// A graph of operators on tensors of one shape, the first of which is the input.
class SummedGraph {
 public:
  SummedGraph() {
    register_worker_values();
    register_step_reductions();
    graph_->def.set_format(1);
    graph_->def.set_inputs(1);
    add_value(proto::Value::INPUT);
  }

  // Adds a node that makes a value from one other, and returns that value.
  uint32_t make(const std::string& op, uint32_t value) {
    proto::Node& node = add_node(op, value);
    const uint32_t result = add_value(proto::Value::RESULT);
    node.add_results()->set_value(result);
    return result;
  }
  // Adds a node that has no result of its own: it adds `other` to `value` in place.
  void accumulate(uint32_t value, uint32_t other) {
    proto::Node& node = add_node("aten::add_.Tensor", value);
    node.add_arguments()->set_value(other);
    node.add_arguments()->set_integer(1);
    node.add_results()->set_none(true);
  }
  // Adds a sum over the workers, which is an output.
  void sum(uint32_t value, const char* op = kSumOverWorkers) {
    graph_->def.add_outputs(make(op, value));
  }

  // Returns the graph after reduce_over_ranks().
  std::shared_ptr<const GraphData> rewritten(const ReductionOptions& options = {}) const {
    return reduce_over_ranks(*value_or_throw(compile(graph_)), options);
  }
  // Returns its operators, without their namespaces.
  Names reduced() const {
    const auto graph = rewritten();
    Names names;
    for (const proto::Node& node : graph->def.nodes()) {
      names.push_back(node.op().substr(node.op().find("::") + 2));
    }
    return names;
  }

 private:
  proto::Node& add_node(const std::string& op, uint32_t value) {
    proto::Node* node = graph_->def.add_nodes();
    node->set_op(op);
    node->add_arguments()->set_value(value);
    return *node;
  }
  uint32_t add_value(proto::Value::Source source) {
    proto::Value* value = graph_->def.add_values();
    value->set_source(source);
    value->mutable_type()->set_dtype(static_cast<int>(at::kFloat));
    for (int64_t size : {3, 3}) value->mutable_type()->add_sizes(size);
    for (int64_t stride : {3, 1}) value->mutable_type()->add_strides(stride);
    return graph_->def.values_size() - 1;
  }

  const std::shared_ptr<GraphData> graph_ = std::make_shared<GraphData>();
};

TEST(ReductionBuckets, ABucketStartsAsSoonAsItsValuesAreThere) {
  SummedGraph graph;
  const uint32_t gradient = graph.make("aten::neg", 0);
  graph.make("aten::abs", 0);
  graph.sum(gradient);
  EXPECT_EQ(graph.reduced(), (Names{"neg", "start_sum", "abs", "finish_sum"}));
}

// The gradient of a layer that is used twice has two parts, which autograd adds up in place.
TEST(ReductionBuckets, ABucketStartsAfterTheLastChangeOfItsValues) {
  SummedGraph graph;
  const uint32_t gradient = graph.make("aten::neg", 0);
  const uint32_t part = graph.make("aten::abs", 0);
  graph.accumulate(gradient, part);
  graph.make("aten::abs", 0);
  graph.sum(gradient);
  EXPECT_EQ(graph.reduced(),
            (Names{"neg", "abs", "add_.Tensor", "start_sum", "abs", "finish_sum"}));
}

TEST(ReductionBuckets, AChangeThroughAViewCountsToo) {
  SummedGraph graph;
  const uint32_t gradient = graph.make("aten::neg", 0);
  const uint32_t view = graph.make("aten::alias", gradient);
  graph.accumulate(view, 0);
  graph.sum(gradient);
  EXPECT_EQ(graph.reduced(), (Names{"neg", "alias", "add_.Tensor", "start_sum", "finish_sum"}));
}

// Counts of examples and sums of losses and metrics are not gradients, and must be exact.
TEST(ReductionBuckets, OnlyGradientsAreSentWithFewerBits) {
  SummedGraph graph;
  const uint32_t gradient = graph.make("aten::neg", 0), count = graph.make("aten::abs", 0);
  graph.sum(gradient, kSumGradients);
  graph.sum(count);
  std::map<uint32_t, int> dtypes;  // dtype on the way, by the value that is summed
  const auto reduced = graph.rewritten({.wire_dtype = at::kHalf});
  for (const proto::Node& node : reduced->def.nodes()) {
    if (node.op() != kStartSum) continue;
    const auto made = reduced->def.values(static_cast<int>(node.results(0).value())).type();
    for (int64_t value : node.arguments(0).values().ids()) {
      dtypes[static_cast<uint32_t>(value)] = made.dtype();
    }
  }
  EXPECT_EQ(dtypes, (std::map<uint32_t, int>{{gradient, static_cast<int>(at::kHalf)},
                                             {count, static_cast<int>(at::kFloat)}}));
}

// A bucket holds a copy of its values.
TEST(ReductionBuckets, AChangeAfterTheSumsDoesNotDelayABucket) {
  SummedGraph graph;
  const uint32_t gradient = graph.make("aten::neg", 0);
  const uint32_t other = graph.make("aten::abs", 0);
  graph.sum(gradient);
  graph.accumulate(gradient, other);
  EXPECT_EQ(graph.reduced(), (Names{"neg", "start_sum", "abs", "finish_sum", "add_.Tensor"}));
}

}  // namespace
}  // namespace trireme::internal
