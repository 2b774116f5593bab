#include "trireme/placement/replica_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// A graph of two replicas, each of which makes the same two values, and the sums of these values.
class TwoReplicas {
 public:
  // `op` makes a value from two inputs.
  explicit TwoReplicas(const std::string& op) {
    graph_->def.set_format(1);
    graph_->def.set_torch_version("");
    for (int i = 0; i < 2; ++i) add_value(proto::Value::INPUT, i);
    graph_->def.set_inputs(2);
    for (uint32_t replica : {1, 2}) {
      for (int i = 0; i < 2; ++i) made_.push_back(add_node(op, {0, 1}, replica));
    }
    for (int i = 0; i < 2; ++i) {
      sums_.push_back(add_node("aten::add.Tensor", {made_[i], made_[i + 2]}, 0));
      graph_->def.mutable_nodes(graph_->def.nodes_size() - 1)->add_arguments()->set_integer(1);
      graph_->def.add_outputs(sums_.back());
    }
  }

  proto::GraphDef& def() { return graph_->def; }
  const std::shared_ptr<GraphData>& graph() const { return graph_; }
  uint32_t made(int i) const { return made_[i]; }

 private:
  uint32_t add_value(proto::Value::Source source, uint32_t index) {
    proto::Value* value = graph_->def.add_values();
    value->set_source(source);
    value->set_index(index);
    value->mutable_type()->set_dtype(static_cast<int>(at::kFloat));
    for (int64_t size : {3, 3}) value->mutable_type()->add_sizes(size);
    for (int64_t stride : {3, 1}) value->mutable_type()->add_strides(stride);
    return graph_->def.values_size() - 1;
  }
  uint32_t add_node(const std::string& op, const std::vector<uint32_t>& values, uint32_t replica) {
    proto::Node* node = graph_->def.add_nodes();
    node->set_op(op);
    node->set_replica(replica);
    for (uint32_t value : values) node->add_arguments()->set_value(value);
    const uint32_t result = add_value(proto::Value::RESULT, 0);
    node->add_results()->set_value(result);
    return result;
  }

  const std::shared_ptr<GraphData> graph_ = std::make_shared<GraphData>();
  std::vector<uint32_t> made_, sums_;
};

std::vector<std::string> operators_of(const GraphData& graph) {
  std::vector<std::string> names;
  for (const proto::Node& node : graph.def.nodes()) names.push_back(node.op().substr(6));
  return names;
}

using Names = std::vector<std::string>;

TEST(ReplicaSums, ABucketIsAddedByOneOperator) {
  const TwoReplicas replicas("aten::mm");
  const auto bucketed = bucket_sums(replicas.graph());
  EXPECT_EQ(operators_of(*bucketed), (Names{"mm", "mm", "mm", "mm", "_foreach_add.List"}));
  const proto::Node& sum = bucketed->def.nodes(4);
  EXPECT_EQ(sum.arguments(0).values().ids_size(), 2);
  EXPECT_EQ(sum.results(0).values().ids(0),
            replicas.graph()->def.outputs(1));  // the last one first
}

TEST(ReplicaSums, SumsThatUseEachOtherAreNotJoined) {
  TwoReplicas replicas("aten::mm");
  proto::GraphDef& def = replicas.def();
  def.mutable_nodes(5)->mutable_arguments(0)->set_value(def.nodes(4).results(0).value());
  EXPECT_EQ(bucket_sums(replicas.graph()), replicas.graph());
}

TEST(ReplicaSums, AProductIsAddedWhereTheOtherIs) {
  const TwoReplicas replicas("aten::mm");
  const auto changed = accumulate_products(replicas.graph());
  EXPECT_EQ(operators_of(*changed), (Names{"mm", "mm", "addmm_", "addmm_"}));
  for (int i : {0, 1}) {
    EXPECT_EQ(changed->def.nodes(2 + i).arguments(0).value(), replicas.made(i));
    EXPECT_EQ(changed->def.nodes(2 + i).replica(), 2);
    EXPECT_EQ(changed->def.outputs(i), replicas.made(i));
  }
}

TEST(ReplicaSums, AProductWithAnotherUseStays) {
  for (int value : {0, 2}) {
    TwoReplicas replicas("aten::mm");
    replicas.def().add_outputs(replicas.made(value));
    EXPECT_EQ(operators_of(*accumulate_products(replicas.graph())),
              (Names{"mm", "mm", "mm", "addmm_", "add.Tensor"}));
  }
  const TwoReplicas others("aten::mul.Tensor");
  EXPECT_EQ(accumulate_products(others.graph()), others.graph());
}

}  // namespace
}  // namespace trireme::internal
