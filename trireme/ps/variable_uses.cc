#include "trireme/ps/variable_uses.h"

#include <algorithm>

#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

using proto::Node;
using proto::Value;

bool same_type(const proto::TensorType& a, const proto::TensorType& b) {
  return a.dtype() == b.dtype() && std::ranges::equal(a.sizes(), b.sizes());
}

}  // namespace

VariableUses::VariableUses(const Plan& plan, const std::vector<bool>& on_servers)
    : plan_(plan), def_(plan.graph->def), on_servers_(on_servers) {
  touches_.resize(def_.variables_size());
  makers_.assign(def_.values_size(), -1);
  users_.resize(def_.values_size());
  for (int i = 0; i < def_.nodes_size(); ++i) {
    for (const auto& made : node(i).results()) {
      for_each_value(made, [&](int64_t id) { makers_[id] = i; });
    }
    for (const auto& used : node(i).arguments()) {
      for_each_value(used, [&](int64_t id) { users_[id].push_back(i); });
    }
  }
  for (int i = 0; i < def_.nodes_size(); ++i) {
    const NodePlan& planned = plan_.nodes[i];
    for (int position : planned.writes ? writable_arguments(planned.op) : std::vector<int>()) {
      for_each_value(node(i).arguments(position),
                     [&](int64_t id) { writers_[plan_.storages[id]].push_back(i); });
    }
    for (const auto& [variable, writes] : planned.variables) {
      if (on_servers_[variable]) touches_[variable].push_back({i, use(i, variable, writes)});
    }
  }
  for (size_t i = 0; i < plan_.output_variables.size(); ++i) {
    const int64_t variable = plan_.output_variables[i];
    // Outputs are read after the last node.
    if (variable >= 0) touches_[variable].push_back({def_.nodes_size(), Use::kRead});
  }
}

int64_t VariableUses::argument(int index, int position) const {
  const auto& argument = node(index).arguments(position);
  return argument.has_value() ? static_cast<int64_t>(argument.value()) : -1;
}

int64_t VariableUses::result(int index, int position) const {
  const auto& result = node(index).results(position);
  return result.has_value() ? static_cast<int64_t>(result.value()) : -1;
}

double VariableUses::scale(int index) const {
  const auto& alpha = node(index).arguments(2);
  const double number = alpha.kind_case() == proto::Argument::kInteger
                            ? static_cast<double>(alpha.integer())
                            : alpha.number();
  const bool subtracts = is_op(index, "aten::sub_.Tensor") || is_op(index, "aten::sub.Tensor");
  return subtracts ? -number : number;
}

bool VariableUses::has_type_of(int64_t id, uint32_t variable) const {
  return same_type(value(id).type(), type_of(variable)) && !value(id).type().sparse();
}

const proto::TensorType& VariableUses::type_of(uint32_t variable) const {
  return def_.variables(static_cast<int>(variable)).type();
}

bool VariableUses::is_variable(int64_t id, uint32_t variable) const {
  return id >= 0 && value(id).source() == Value::VARIABLE && value(id).index() == variable;
}

// A write counts as an addition or assignment only if the server can repeat it from the argument
// alone: the argument has the variable's type, so that nothing is broadcast or converted, and does
// not share memory with the variable.
VariableUses::Use VariableUses::use(int index, uint32_t variable, bool writes) const {
  const bool first = is_variable(argument(index, 0), variable);
  if (!writes) return first && row_ids(index) >= 0 ? Use::kReadRows : Use::kRead;
  if (!first) return Use::kWrite;
  if (is_op(index, "trireme::push_gradient")) return Use::kGradient;
  const int64_t other = node(index).arguments_size() > 1 ? argument(index, 1) : -1;
  if (other < 0 || plan_.storages[other] == plan_.storages[argument(index, 0)]) {
    return Use::kWrite;
  }
  if (!has_type_of(other, variable)) return Use::kWrite;
  if (is_op(index, "aten::add_.Tensor") || is_op(index, "aten::sub_.Tensor")) return Use::kAdd;
  return is_op(index, "aten::copy_") ? Use::kAssign : Use::kWrite;
}

// The backward operator of an embedding_bag that takes maxima gets the ids of the rows that had
// them. If only some rows are pulled, they have other ids, so all rows are pulled then.
int64_t VariableUses::row_ids(int index) const {
  if (is_op(index, "aten::_embedding_bag")) {
    constexpr int kMode = 4, kMax = 2, kIdsOfMaxima = 3;
    const auto& maxima = node(index).results(kIdsOfMaxima);
    const bool used =
        maxima.has_value() &&
        (!users_[maxima.value()].empty() || std::ranges::count(def_.outputs(), maxima.value()) > 0);
    if (node(index).arguments(kMode).integer() == kMax && used) return -1;
  }
  if (is_op(index, "aten::embedding") || is_op(index, "aten::_embedding_bag") ||
      is_op(index, "aten::_embedding_bag_forward_only")) {
    return argument(index, 1);
  }
  if (is_op(index, "aten::index_select") && node(index).arguments(1).integer() == 0) {
    return argument(index, 2);
  }
  return -1;
}

int VariableUses::row_ids_position(const Node& node) {
  return node.op() == "aten::index_select" ? 2 : 1;
}

// An `embedding` has a padding row too, but reads it like any other: only its gradient is left out.
int VariableUses::padding_position(const Node& node) {
  return node.op().starts_with("aten::_embedding_bag") ? 8 : -1;
}

// Values whose memory is written anywhere in the step are excluded: before the pull they could have
// other contents than at the time of the read.
bool VariableUses::runs_before_pull(int64_t id, std::set<int>& nodes) const {
  if (writers_.contains(plan_.storages[id])) return false;
  switch (value(id).source()) {
    case Value::INPUT:
    case Value::CONSTANT:
      return true;
    case Value::VARIABLE:
      return !on_servers_[value(id).index()];
    case Value::RESULT:
      break;
    default:
      return false;
  }
  const int maker = makers_[id];
  if (maker < 0 || plan_.nodes[maker].writes || plan_.nodes[maker].random) return false;
  if (!nodes.insert(maker).second) return true;  // was checked before
  bool all = true;
  for (const auto& used : node(maker).arguments()) {
    for_each_value(used, [&](int64_t id) { all = all && runs_before_pull(id, nodes); });
  }
  return all;
}

bool VariableUses::is_written_from(int64_t id, int index) const {
  const auto writers = writers_.find(plan_.storages[id]);
  return writers != writers_.end() && writers->second.back() >= index;
}

}  // namespace trireme::internal
