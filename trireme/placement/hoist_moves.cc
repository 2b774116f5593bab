#include "trireme/placement/hoist_moves.h"

#include <c10/core/Device.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "trireme/graph/graph_builder.h"

namespace trireme::internal {
namespace {

// A move to the CPU blocks the host, so it must not come earlier.
bool blocks_host(const proto::Node& node) {
  return std::ranges::any_of(node.arguments(), [](const proto::Argument& argument) {
    return argument.kind_case() == proto::Argument::kDevice &&
           c10::Device(argument.device()).is_cpu();
  });
}

}  // namespace

void hoist_moves(const std::set<uint32_t>& moves, proto::GraphDef& def) {
  std::map<int, std::vector<int>> hoisted;     // nodes of `moves` by the node that they follow
  std::vector<int> anchors(def.nodes_size());  // the node that each follows; others: themselves
  std::map<int64_t, int> makers;
  for (int i = 0; i < def.nodes_size(); ++i) {
    int last = -1;
    anchors[i] = i;
    for (const auto& argument : def.nodes(i).arguments()) {
      for_each_value(argument, [&](int64_t value) {
        const auto maker = makers.find(value);
        if (maker != makers.end()) last = std::max(last, anchors[maker->second]);
      });
    }
    if (moves.contains(i) && last >= 0 && !blocks_host(def.nodes(i))) {
      anchors[i] = last;
      hoisted[last].push_back(i);
    }
    for (const auto& result : def.nodes(i).results()) {
      for_each_value(result, [&](int64_t value) { makers[value] = i; });
    }
  }
  std::vector<uint32_t> order;
  for (int i = 0; i < def.nodes_size(); ++i) {
    if (anchors[i] != i) continue;
    order.push_back(i);
    for (int move : hoisted[i]) {
      def.mutable_nodes(move)->set_replica(def.nodes(i).replica());
      order.push_back(move);
    }
  }
  std::vector<uint32_t> places(order.size());
  for (size_t i = 0; i < order.size(); ++i) places[order[i]] = static_cast<uint32_t>(i);
  proto::GraphDef sorted;
  for (uint32_t node : order) {
    proto::Node& moved = *sorted.add_nodes();
    moved = std::move(*def.mutable_nodes(static_cast<int>(node)));
    if (moved.differentiates() > 0)
      moved.set_differentiates(places[moved.differentiates() - 1] + 1);
  }
  def.mutable_nodes()->Swap(sorted.mutable_nodes());
}

}  // namespace trireme::internal
