#include "trireme/ps/table_gradients.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "trireme/graph/graph_builder.h"
#include "trireme/ps/row_gradient_rules.h"

// Follows the gradient of each lookup through the nodes of a step. row_rule() says what an operator
// does to it. If a node needs all rows, the whole gradient has to exist, and so do the tensors that
// it is computed from and those that are computed from it element by element. These are joined into
// one tree, which can be computed by rows as a whole or not at all. Numbers that are computed from
// a gradient, such as its norm, are the same in both cases, so they join nothing.
namespace trireme::internal {
namespace {

using proto::Argument;
using proto::Node;
using proto::TensorType;
using Effect = RowRule::Effect;

}  // namespace

TableGradients::TableGradients(const proto::GraphDef& def, const VariableUses& uses)
    : def_(def), uses_(uses), table_of_(def.values_size(), -1) {
  for (int i = 0; i < def_.nodes_size(); ++i) note_node(i);
  for (int64_t output : def_.outputs()) {
    if (output >= 0 && table_of_[output] >= 0) break_rows(table_of_[output], def_.nodes_size());
  }
}

int TableGradients::rows_of(int64_t id) const {
  if (id < 0 || table_of_[id] < 0) return -1;
  const Table& table = tables_[root(table_of_[id])];
  return table.pushed && table.obstacle < 0 ? table_of_[id] : -1;
}

// (gradient, ids, rows of the table, padding, scaled by frequency) and
// (gradient, ids, offsets, ..., 7: scaled by frequency, mode, sparse, weights, padding).
// The gradient of index_select is added to zeros: (zeros, dimension, ids, gradient, factor).
std::optional<RowSource> TableGradients::source_of(int index) const {
  const Node& node = uses_.node(index);
  RowSource source;
  if (node.op() == "aten::embedding_dense_backward") {
    source.table = uses_.result(index, 0);
    source.gradient = uses_.argument(index, 0);
    source.ids = uses_.argument(index, 1);
    source.no_row = node.arguments(3).integer();
    source.supported = !node.arguments(4).boolean();
  } else if (node.op() == "aten::_embedding_bag_backward") {
    constexpr int64_t kSum = 0, kMean = 1;
    const int64_t mode = node.arguments(8).integer();
    source.table = uses_.result(index, 0);
    source.gradient = uses_.argument(index, 0);
    source.ids = uses_.argument(index, 1);
    source.no_row = node.arguments(11).integer();
    source.is_bag = true;
    source.supported = !node.arguments(7).boolean() && (mode == kSum || mode == kMean);
  } else if (node.op() == "aten::index_add_" && uses_.argument(index, 0) >= 0) {
    source.table = uses_.argument(index, 0);
    source.ids = uses_.argument(index, 2);
    source.gradient = uses_.argument(index, 3);
    source.zeros = uses_.maker(source.table);
    const bool adds_to_zeros = source.zeros >= 0 && uses_.is_op(source.zeros, "aten::new_zeros") &&
                               uses_.users(source.table).front() == index;
    if (!adds_to_zeros || node.arguments(1).integer() != 0) return std::nullopt;
    const Argument& factor = node.arguments(4);
    source.supported = factor.kind_case() == Argument::kInteger && factor.integer() == 1;
  } else {
    return std::nullopt;
  }
  if (source.table < 0 || source.ids < 0 || source.gradient < 0) return std::nullopt;
  if (type(source.table).sparse() || type(source.table).sizes().empty()) return std::nullopt;
  source.supported = source.supported && (source.is_bag || has_row_for_each_id(source));
  return source;
}

bool TableGradients::has_row_for_each_id(const RowSource& source) const {
  const TensorType &table = type(source.table), &ids = type(source.ids);
  std::vector<int64_t> expected(ids.sizes().begin(), ids.sizes().end());
  expected.insert(expected.end(), table.sizes().begin() + 1, table.sizes().end());
  return std::ranges::equal(type(source.gradient).sizes(), expected) &&
         type(source.gradient).dtype() == table.dtype();
}

void TableGradients::note_node(int index) {
  const Node& node = uses_.node(index);
  std::vector<int> used;
  for (const Argument& argument : node.arguments()) {
    for_each_value(argument, [&](int64_t id) {
      if (table_of_[id] >= 0) used.push_back(table_of_[id]);
    });
  }
  if (const auto source = source_of(index)) {
    for (int table : used) break_rows(table, index);
    const int table = add_table(source->table);
    if (!source->supported) break_rows(table, index);
    return;
  }
  if (used.empty()) return;
  const RowRule rule = row_rule(def_, node, [this](int64_t id) { return table_of_[id]; });
  switch (rule.effect) {
    case Effect::kBreaks:
      for (int table : used) break_rows(table, index);
      return;
    case Effect::kSame:
      // A tensor that the capture knew already is not a result.
      if (const int64_t result = uses_.result(index, 0); result >= 0) table_of_[result] = used[0];
      return;
    case Effect::kSum:
      join(used[0], used[1]);
      [[fallthrough]];
    case Effect::kEach:
      if (!rule.in_place) note_results(index);
      return;
    case Effect::kReduces:
      return;
    case Effect::kPushes:
      note_push(index, used[0]);
      return;
  }
}

void TableGradients::note_push(int index, int table) {
  const int64_t id = uses_.argument(index, 0);
  const proto::Value& variable = def_.values(static_cast<int>(id));
  if (variable.source() == proto::Value::VARIABLE &&
      uses_.has_type_of(uses_.argument(index, 1), variable.index())) {
    tables_[root(table)].pushed = true;
  } else {
    break_rows(table, index);
  }
}

// Joins each result of a node with the table gradient that it is computed from: the one in the same
// place of a list, or else the only one among the arguments.
void TableGradients::note_results(int index) {
  const Node& node = uses_.node(index);
  if (node.arguments(0).has_values()) {
    const auto& from = node.arguments(0).values().ids();
    const auto& made = node.results(0).values().ids();
    for (int i = 0; i < std::min(from.size(), made.size()); ++i) {
      if (from[i] >= 0 && table_of_[from[i]] >= 0 && made[i] >= 0) {
        join(table_of_[from[i]], add_table(made[i]));
      }
    }
    return;
  }
  const int64_t result = uses_.result(index, 0);
  for (int i = 0; i < node.arguments_size() && result >= 0; ++i) {
    const int64_t id = uses_.argument(index, i);
    if (id < 0 || table_of_[id] < 0) continue;
    join(table_of_[id], add_table(result));
    return;
  }
}

// Goes back from the gradient to the tensors of its size that it is computed from, until one of
// them is a table gradient. If there is none, the node that made the first of them is named.
int TableGradients::obstacle(int64_t gradient) const {
  const auto elements = [this](int64_t id) {
    const auto& sizes = type(id).sizes();
    // Unsigned, since a graph from a peer may name sizes whose product overflows.
    return std::accumulate(sizes.begin(), sizes.end(), uint64_t{1}, std::multiplies<uint64_t>());
  };
  int64_t id = gradient;
  while (table_of_[id] < 0) {
    const int maker = uses_.maker(id);
    if (maker < 0) return -1;
    int64_t from = -1;
    for (const Argument& argument : uses_.node(maker).arguments()) {
      for_each_value(argument, [&](int64_t used) {
        if (elements(used) != elements(gradient)) return;
        if (from < 0 || table_of_[used] >= 0) from = used;
      });
    }
    if (from < 0) return maker;
    id = from;
  }
  return tables_[root(table_of_[id])].obstacle;
}

int TableGradients::add_table(int64_t id) {
  table_of_[id] = static_cast<int>(tables_.size());
  tables_.push_back({table_of_[id]});
  return table_of_[id];
}

int TableGradients::root(int table) const {
  while (tables_[table].parent != table) table = tables_[table].parent;
  return table;
}

void TableGradients::join(int a, int b) {
  a = root(a);
  b = root(b);
  if (a == b) return;
  if (tables_[a].size < tables_[b].size) std::swap(a, b);
  tables_[b].parent = a;
  tables_[a].size += tables_[b].size;
  if (tables_[a].obstacle < 0) tables_[a].obstacle = tables_[b].obstacle;
  tables_[a].pushed |= tables_[b].pushed;
}

void TableGradients::break_rows(int table, int node) {
  Table& broken = tables_[root(table)];
  if (broken.obstacle < 0) broken.obstacle = node;
}

}  // namespace trireme::internal
