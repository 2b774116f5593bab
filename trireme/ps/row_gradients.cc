#include "trireme/ps/row_gradients.h"

#include <c10/core/ScalarType.h>

#include <utility>

#include "trireme/graph/graph_builder.h"
#include "trireme/ps/row_gradient_rules.h"
#include "trireme/ps/table_gradients.h"

// A step is captured with the whole gradient of each table that it looks up rows in, and all that
// it does to gradients, such as clipping them to a norm, is captured with tensors of that size.
// Most rows of them are zero. This rewrites the operators to work on the other rows alone.
//
// TableGradients says which gradients can be computed in this way. RowRewriter goes through the
// nodes in order and keeps the contents of each such gradient as a sum of rows (Form). A lookup
// makes a term, and a sum of two gradients concatenates their terms; neither needs an operator. All
// other operators need rows with distinct ids: the norm of a gradient is that of the sums.
// `trireme::sum_rows` computes them, once for each gradient. A gradient that is pushed as it is
// needs no such operator, since the servers add up the rows.
//
// Replacements write to no tensor: an operator that writes to a gradient becomes one that makes
// another tensor, which holds the contents of the gradient from there on.
namespace trireme::internal {
namespace {

using proto::Argument;
using proto::Node;
using proto::TensorType;
using Rows = RowGradients::Rows;
using Effect = RowRule::Effect;

// Sums with more terms are added up first. Otherwise a gradient that is added to itself again and
// again would have any number of terms.
constexpr size_t kMostTerms = 64;

// Writes the nodes that compute the rows of table gradients in place of the tables.
class RowRewriter {
 public:
  RowRewriter(const Plan& plan, const VariableUses& uses, const TableGradients& tables)
      : def_(plan.graph->def), uses_(uses), tables_(tables) {}

  RowGradients rewrite() {
    for (int i = 0; i < def_.nodes_size(); ++i) rewrite_node(i);
    return std::move(made_);
  }

 private:
  // The contents of a table gradient, as a sum of rows.
  struct Form {
    std::vector<Rows> terms;
    bool distinct = false;  // true if there is one term, with distinct ids
  };

  void rewrite_node(int index);
  void rewrite_source(int index, const RowSource& source);
  void rewrite_sum(int index, bool in_place);
  void rewrite_call(int index, const RowRule& rule);
  void rewrite_list(int index, const RowRule& rule);
  void rewrite_list_in_place(int index, const RowRule& rule);

  Form& form(int64_t id) { return forms_[tables_.rows_of(id)]; }
  // Returns the rows of a table gradient with distinct ids. The nodes that compute them are
  // appended to the replacement of `index`, unless there are some from before.
  Rows distinct_rows(int64_t id, int index);
  // Makes a value the contents of the table gradient `id`: what an operator computes from `rows`.
  uint32_t set_contents(int64_t id, Rows rows);
  // Adds a value that holds rows of a table like `id`. Its type is that of the whole table, because
  // the number of rows is known only at run time.
  int64_t add_rows_value(int64_t id);
  int64_t add_value(TensorType type);
  // Returns a node without arguments and results, at the same place of the program as another.
  Node node_like(int index, const char* op) const;

  const proto::GraphDef& def_;
  const VariableUses& uses_;
  const TableGradients& tables_;
  std::map<int, Form> forms_;  // contents of each table gradient, before the next node
  RowGradients made_;
};

void RowRewriter::rewrite_node(int index) {
  const Node& node = uses_.node(index);
  if (const auto source = tables_.source_of(index)) {
    if (tables_.rows_of(source->table) >= 0) rewrite_source(index, *source);
    return;
  }
  bool uses_rows = false;
  for (const Argument& argument : node.arguments()) {
    for_each_value(argument, [&](int64_t id) { uses_rows |= tables_.rows_of(id) >= 0; });
  }
  if (!uses_rows) {
    if (node.op() == "trireme::push_gradient") {
      made_.obstacles[index] = tables_.obstacle(uses_.argument(index, 1));
    }
    return;
  }
  const RowRule rule = row_rule(def_, node, [this](int64_t id) { return tables_.rows_of(id); });
  switch (rule.effect) {
    case Effect::kPushes:
      made_.pushed[index] = form(uses_.argument(index, 1)).terms;
      return;
    case Effect::kSame:
      made_.replaced[index];  // nothing to run
      return;
    case Effect::kSum:
      return rewrite_sum(index, rule.in_place);
    default:
      break;
  }
  if (!node.arguments(0).has_values()) {
    rewrite_call(index, rule);
  } else if (rule.in_place) {
    rewrite_list_in_place(index, rule);
  } else {
    rewrite_list(index, rule);
  }
}

void RowRewriter::rewrite_source(int index, const RowSource& source) {
  std::vector<Node>& nodes = made_.replaced[index];
  if (source.zeros >= 0) made_.replaced[source.zeros];  // nothing to run
  Rows rows{source.ids, source.gradient, source.no_row};
  if (source.is_bag) {
    rows.rows = add_rows_value(source.table);
    Node node = node_like(index, "trireme::bag_rows");
    for (int position : {0, 1, 2, 8, 10, 11}) {
      *node.add_arguments() = uses_.node(index).arguments(position);
    }
    node.add_results()->set_value(static_cast<uint32_t>(rows.rows));
    nodes.push_back(std::move(node));
  }
  form(source.table) = Form{{rows}};
  // The terms are read later, when the memory may have other contents.
  const bool written =
      uses_.is_written_from(source.ids, index) || uses_.is_written_from(source.gradient, index);
  if (written) distinct_rows(source.table, index);
}

void RowRewriter::rewrite_sum(int index, bool in_place) {
  const int64_t left = uses_.argument(index, 0), right = uses_.argument(index, 1);
  std::vector<Node>& nodes = made_.replaced[index];
  std::vector<Rows> terms = form(left).terms, added = form(right).terms;
  if (const double factor = uses_.scale(index); factor != 1) {
    added = {distinct_rows(right, index)};
    Node node = node_like(index, "aten::mul.Scalar");
    node.add_arguments()->set_value(static_cast<uint32_t>(added[0].rows));
    node.add_arguments()->set_number(factor);
    added[0].rows = add_rows_value(right);
    node.add_results()->set_value(static_cast<uint32_t>(added[0].rows));
    nodes.push_back(std::move(node));
  }
  if (terms.size() + added.size() > kMostTerms) {
    terms = {distinct_rows(left, index)};
    if (added.size() > 1) added = {distinct_rows(right, index)};
  }
  terms.insert(terms.end(), added.begin(), added.end());
  const int64_t result = in_place ? left : uses_.result(index, 0);
  if (result >= 0) form(result) = Form{std::move(terms)};
}

void RowRewriter::rewrite_call(int index, const RowRule& rule) {
  Node node = uses_.node(index);
  node.set_op(rule.op);
  node.clear_differentiates();
  int64_t table = -1;
  Rows rows;
  for (int i = 0; i < node.arguments_size(); ++i) {
    const int64_t id = uses_.argument(index, i);
    if (tables_.rows_of(id) < 0) continue;
    table = id;
    rows = distinct_rows(id, index);
    node.mutable_arguments(i)->set_value(static_cast<uint32_t>(rows.rows));
  }
  if (rule.effect == Effect::kEach) {
    const int64_t result = rule.in_place ? table : uses_.result(index, 0);
    if (result >= 0) node.mutable_results(0)->set_value(set_contents(result, rows));
  }
  made_.replaced[index].push_back(std::move(node));
}

// The list may hold other tensors too, which stay as they are.
void RowRewriter::rewrite_list(int index, const RowRule& rule) {
  Node node = uses_.node(index);
  node.clear_differentiates();
  auto& list = *node.mutable_arguments(0)->mutable_values()->mutable_ids();
  for (int i = 0; i < list.size(); ++i) {
    if (tables_.rows_of(list[i]) < 0) continue;
    const Rows rows = distinct_rows(list[i], index);
    list[i] = rows.rows;
    if (rule.effect != Effect::kEach) continue;
    int64_t& result = *node.mutable_results(0)->mutable_values()->mutable_ids()->Mutable(i);
    if (result >= 0) result = set_contents(result, rows);
  }
  made_.replaced[index].push_back(std::move(node));
}

// Splits the node: it still writes to the other tensors of the list, and the table gradients go to
// an operator that returns its results.
void RowRewriter::rewrite_list_in_place(int index, const RowRule& rule) {
  Node others = uses_.node(index), node = uses_.node(index);
  others.clear_differentiates();
  node.clear_differentiates();
  node.set_op(rule.op);
  auto& rest = *others.mutable_arguments(0)->mutable_values();
  auto& list = *node.mutable_arguments(0)->mutable_values();
  rest.clear_ids();
  list.clear_ids();
  node.clear_results();
  auto& results = *node.add_results()->mutable_values();
  for (int64_t id : uses_.node(index).arguments(0).values().ids()) {
    if (tables_.rows_of(id) < 0) {
      rest.add_ids(id);
      continue;
    }
    const Rows rows = distinct_rows(id, index);
    list.add_ids(rows.rows);
    results.add_ids(set_contents(id, rows));
  }
  std::vector<Node>& nodes = made_.replaced[index];
  if (rest.ids_size() > 0) nodes.push_back(std::move(others));
  nodes.push_back(std::move(node));
}

Rows RowRewriter::distinct_rows(int64_t id, int index) {
  Form& summed = form(id);
  if (summed.distinct) return summed.terms[0];
  Node node = node_like(index, "trireme::sum_rows");
  auto& ids = *node.add_arguments()->mutable_values();
  auto& rows = *node.add_arguments()->mutable_values();
  auto& no_row = *node.add_arguments()->mutable_integers();
  for (const Rows& term : summed.terms) {
    ids.add_ids(term.ids);
    rows.add_ids(term.rows);
    no_row.add_items(term.no_row);
  }
  TensorType type;
  type.set_dtype(static_cast<int>(c10::kLong));
  type.add_sizes(0);  // the number of distinct ids is known only at run time
  type.add_strides(1);
  const Rows sum{add_value(std::move(type)), add_rows_value(id), -1};
  node.add_results()->set_value(static_cast<uint32_t>(sum.ids));
  node.add_results()->set_value(static_cast<uint32_t>(sum.rows));
  made_.replaced[index].push_back(std::move(node));
  summed = Form{{sum}, true};
  return sum;
}

uint32_t RowRewriter::set_contents(int64_t id, Rows rows) {
  rows.rows = add_rows_value(id);
  form(id) = Form{{rows}, true};
  return static_cast<uint32_t>(rows.rows);
}

int64_t RowRewriter::add_rows_value(int64_t id) {
  return add_value(def_.values(static_cast<int>(id)).type());
}

int64_t RowRewriter::add_value(TensorType type) {
  *made_.values.emplace_back().mutable_type() = std::move(type);
  return def_.values_size() + static_cast<int64_t>(made_.values.size()) - 1;
}

Node RowRewriter::node_like(int index, const char* op) const {
  Node node = uses_.node(index);
  node.set_op(op);
  node.clear_arguments();
  node.clear_results();
  node.clear_differentiates();
  node.clear_reshapes();
  return node;
}

}  // namespace

RowGradients find_row_gradients(const Plan& plan, const VariableUses& uses) {
  const TableGradients tables(plan.graph->def, uses);
  return RowRewriter(plan, uses, tables).rewrite();
}

}  // namespace trireme::internal
