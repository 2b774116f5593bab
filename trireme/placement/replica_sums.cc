#include "trireme/placement/replica_sums.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "trireme/graph/graph_builder.h"
#include "trireme/placement/forward_numbers.h"
#include "trireme/placement/move_buckets.h"
#include "trireme/placement/tensor_bytes.h"

namespace trireme::internal {
namespace {

bool same_type(const proto::TensorType& a, const proto::TensorType& b) {
  return a.dtype() == b.dtype() && !a.sparse() && !b.sparse() &&
         std::ranges::equal(a.sizes(), b.sizes()) && std::ranges::equal(a.strides(), b.strides());
}

// Returns true for `a + b` outside of replicas, of tensors of the same type.
bool is_sum(const proto::GraphDef& def, const proto::Node& node) {
  if (node.op() != "aten::add.Tensor" || node.replica() > 0 || !node.device().empty() ||
      node.arguments_size() != 3 || node.arguments(2).integer() != 1 ||
      node.arguments(0).kind_case() != proto::Argument::kValue ||
      node.arguments(1).kind_case() != proto::Argument::kValue ||
      node.results(0).kind_case() != proto::Argument::kValue) {
    return false;
  }
  const proto::TensorType& type = def.values(node.results(0).value()).type();
  return type.sizes_size() > 0 && same_type(type, def.values(node.arguments(0).value()).type()) &&
         same_type(type, def.values(node.arguments(1).value()).type());
}

// A sum of two lists that is being put together.
struct Bucket {
  proto::Values first, second, results;
  int32_t dtype = 0;
  int64_t bytes = 0;

  bool takes(const proto::GraphDef& def, const proto::Node& sum) const {
    if (results.ids().empty()) return true;
    const proto::TensorType& type = def.values(sum.results(0).value()).type();
    return bytes < kBucketBytes && type.dtype() == dtype;
  }
  void add(const proto::GraphDef& def, const proto::Node& sum) {
    const proto::TensorType& type = def.values(sum.results(0).value()).type();
    first.add_ids(sum.arguments(0).value());
    second.add_ids(sum.arguments(1).value());
    results.add_ids(sum.results(0).value());
    dtype = type.dtype();
    bytes += tensor_bytes(type);
  }
  proto::Node node() && {
    proto::Node node;
    node.set_op("aten::_foreach_add.List");
    *node.add_arguments()->mutable_values() = std::move(first);
    *node.add_arguments()->mutable_values() = std::move(second);
    node.add_arguments()->set_integer(1);  // alpha
    *node.add_results()->mutable_values() = std::move(results);
    return node;
  }
};

// Returns the end of the sums that begin at a node and do not use each other.
int end_of_sums(const proto::GraphDef& def, int begin) {
  std::set<int64_t> made;
  int end = begin;
  for (; end < def.nodes_size() && is_sum(def, def.nodes(end)); ++end) {
    const proto::Node& sum = def.nodes(end);
    if (made.contains(sum.arguments(0).value()) || made.contains(sum.arguments(1).value())) break;
    made.insert(sum.results(0).value());
  }
  return end;
}

// Finds the products that can be added to another one while they are computed.
class ProductAccumulator {
 public:
  explicit ProductAccumulator(const proto::GraphDef& def)
      : def_(def), uses_(def.values_size(), 0), makers_(def.values_size(), -1) {
    for (int i = 0; i < def.nodes_size(); ++i) {
      for (const auto& argument : def.nodes(i).arguments()) {
        for_each_value(argument, [&](int64_t value) { ++uses_[value]; });
      }
      for (const auto& result : def.nodes(i).results()) {
        for_each_value(result, [&](int64_t value) { makers_[value] = i; });
      }
    }
    for (int64_t output : def.outputs()) {
      if (output >= 0) ++uses_[output];
    }
  }

  // Decides about a sum. Its result is then `first`, which the product was added to.
  void try_sum(int index) {
    const proto::Node& sum = def_.nodes(index);
    const int64_t first = name(sum.arguments(0).value()), second = name(sum.arguments(1).value());
    int64_t target = first, product = second;
    const bool turned = is_turned(first) && is_turned(second);
    if (turned) {
      target = def_.nodes(makers_[first]).arguments(0).value();
      product = def_.nodes(makers_[second]).arguments(0).value();
    }
    if (!is_product(target) || !is_product(product) || makers_[target] >= makers_[product] ||
        def_.nodes(makers_[target]).replica() == def_.nodes(makers_[product]).replica() ||
        !is_used_once(first, target) || !is_used_once(second, product) ||
        accumulated_.contains(makers_[product])) {
      return;
    }
    accumulated_[makers_[product]] = target;
    dropped_.insert(index);
    if (turned) dropped_.insert(makers_[second]);
    const int64_t result = sum.results(0).value();
    renamed_[result] = first;
    uses_[first] = uses_[result];
  }

  bool found() const { return !accumulated_.empty(); }
  bool is_dropped(int node) const { return dropped_.contains(node); }
  // Returns the node as it is in the new graph, except for the numbers of nodes.
  proto::Node node(int index) const {
    proto::Node node = def_.nodes(index);
    for (auto& argument : *node.mutable_arguments()) {
      if (argument.kind_case() == proto::Argument::kValue) {
        argument.set_value(static_cast<uint32_t>(name(argument.value())));
      } else if (argument.has_values()) {
        for (int64_t& value : *argument.mutable_values()->mutable_ids()) value = name(value);
      }
    }
    const auto target = accumulated_.find(index);
    if (target == accumulated_.end()) return node;
    proto::Node sum = node;
    sum.set_op("aten::addmm_");
    sum.clear_arguments();
    sum.add_arguments()->set_value(static_cast<uint32_t>(target->second));
    for (const auto& factor : node.arguments()) *sum.add_arguments() = factor;
    sum.add_arguments()->set_integer(1);  // beta
    sum.add_arguments()->set_integer(1);  // alpha
    sum.mutable_results(0)->set_none(true);
    return sum;
  }
  // Returns the value that has the contents of an old value.
  int64_t name(int64_t value) const {
    const auto found = renamed_.find(value);
    return found == renamed_.end() ? value : found->second;
  }

 private:
  bool is_made_by(int64_t value, const char* op) const {
    return makers_[value] >= 0 && def_.nodes(makers_[value]).op() == op &&
           def_.nodes(makers_[value]).replica() > 0;
  }
  bool is_turned(int64_t value) const { return is_made_by(value, "aten::t"); }
  bool is_product(int64_t value) const { return is_made_by(value, "aten::mm"); }
  // Returns true if nothing uses the value, and the one that it is a view of, but the sum.
  bool is_used_once(int64_t value, int64_t viewed) const {
    return uses_[value] == 1 && uses_[viewed] == 1;
  }

  const proto::GraphDef& def_;
  std::vector<int> uses_, makers_;
  std::map<int, int64_t> accumulated_;  // products, with the values that they are added to
  std::set<int> dropped_;               // nodes that are not needed any more
  std::map<int64_t, int64_t> renamed_;  // results of sums, with the values that have them now
};

}  // namespace

std::shared_ptr<const GraphData> accumulate_products(std::shared_ptr<const GraphData> graph) {
  const proto::GraphDef& def = graph->def;
  ProductAccumulator accumulator(def);
  for (int i = 0; i < def.nodes_size(); ++i) {
    if (is_sum(def, def.nodes(i))) accumulator.try_sum(i);
  }
  if (!accumulator.found()) return graph;
  auto changed = std::make_shared<GraphData>(*graph);
  changed->def.clear_nodes();
  std::vector<uint32_t> places(def.nodes_size());
  for (int i = 0; i < def.nodes_size(); ++i) {
    if (!accumulator.is_dropped(i)) *changed->def.add_nodes() = accumulator.node(i);
    places[i] = changed->def.nodes_size();
  }
  for (int64_t& output : *changed->def.mutable_outputs()) output = accumulator.name(output);
  renumber_forward(places, changed->def);
  return changed;
}

// Backward makes the gradients of the last layers first, so the sums are taken from the back.
std::shared_ptr<const GraphData> bucket_sums(std::shared_ptr<const GraphData> graph) {
  const proto::GraphDef& def = graph->def;
  auto joined = std::make_shared<GraphData>(*graph);
  joined->def.clear_nodes();
  std::vector<uint32_t> places(def.nodes_size());  // 1 + the new number of each node
  bool changed = false;
  for (int i = 0; i < def.nodes_size();) {
    const int end = end_of_sums(def, i);
    if (end - i < 2) {
      *joined->def.add_nodes() = def.nodes(i);
      places[i++] = joined->def.nodes_size();
      continue;
    }
    std::vector<Bucket> buckets(1);
    for (int sum = end - 1; sum >= i; --sum) {
      if (!buckets.back().takes(def, def.nodes(sum))) buckets.emplace_back();
      buckets.back().add(def, def.nodes(sum));
    }
    for (Bucket& bucket : buckets) *joined->def.add_nodes() = std::move(bucket).node();
    for (; i < end; ++i) places[i] = joined->def.nodes_size();
    changed = true;
  }
  if (!changed) return graph;
  renumber_forward(places, joined->def);
  return joined;
}

}  // namespace trireme::internal
