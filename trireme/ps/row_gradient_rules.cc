// The rules are a table of operators. Each has an effect and a test, which decides by the arguments
// of the call whether the effect holds: a clamp keeps zeros if its range contains zero, and a
// factor must not differ from row to row. Operators that write to their first argument follow the
// rule of the operator without the trailing underscore.
#include "trireme/ps/row_gradient_rules.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <vector>

#include "trireme/graph/graph_builder.h"

namespace trireme::internal {
namespace {

using proto::Argument;
using Effect = RowRule::Effect;

// A call of an operator with at least one table gradient among its arguments.
struct RowCall {
  const proto::GraphDef& def;
  const proto::Node& node;
  const TableOf& table_of;

  // Returns the value that is an argument, or -1.
  int64_t value(int position) const {
    const Argument& argument = node.arguments(position);
    return argument.has_value() ? static_cast<int64_t>(argument.value()) : -1;
  }
  // Returns the table gradient that is an argument, or -1.
  int table(int position) const {
    const int64_t id = value(position);
    return id < 0 ? -1 : table_of(id);
  }
  const proto::TensorType& type(int position) const {
    return def.values(static_cast<int>(value(position))).type();
  }
  // Returns the number that is an argument. Returns nullopt for none and for a complex number.
  std::optional<double> number(int position) const {
    const Argument& argument = node.arguments(position);
    if (argument.kind_case() == Argument::kInteger) return static_cast<double>(argument.integer());
    if (argument.kind_case() == Argument::kNumber) return argument.number();
    return std::nullopt;
  }
  bool is_none(int position) const { return node.arguments(position).has_none(); }
};

// Returns true if no argument but this one is or contains a table gradient.
bool tables_only_at(const RowCall& call, int position) {
  bool only = true;
  for (int i = 0; i < call.node.arguments_size(); ++i) {
    if (i == position) continue;
    for_each_value(call.node.arguments(i), [&](int64_t id) { only &= call.table_of(id) < 0; });
  }
  return only;
}

bool first_only(const RowCall& call) {
  return tables_only_at(call, 0);
}

bool gradient_of_push(const RowCall& call) {
  return tables_only_at(call, 1) && call.table(1) >= 0;
}

bool positive_exponent(const RowCall& call) {
  const auto exponent = call.number(1);
  return first_only(call) && exponent && *exponent > 0;
}

bool at_least_zero(const RowCall& call) {
  const auto limit = call.number(1);
  return first_only(call) && limit && *limit >= 0;
}

bool at_most_zero(const RowCall& call) {
  const auto limit = call.number(1);
  return first_only(call) && limit && *limit <= 0;
}

bool range_around_zero(const RowCall& call) {
  const auto low = call.number(1), high = call.number(2);
  return first_only(call) && (call.is_none(1) || (low && *low <= 0)) &&
         (call.is_none(2) || (high && *high >= 0));
}

bool dense_result(const RowCall& call) {
  if (!first_only(call) || !call.node.results(0).has_value()) return false;
  return !call.def.values(static_cast<int>(call.node.results(0).value())).type().sparse();
}

// Returns true if the factor at a position is the same for all rows of the table at the other one:
// the factor has no dimension for the rows, or one of size 1.
bool same_for_all_rows(const RowCall& call, int table, int factor) {
  if (call.table(table) < 0 || call.value(factor) < 0 || call.table(factor) >= 0) return false;
  const proto::TensorType &rows = call.type(table), &other = call.type(factor);
  if (other.sparse() || other.sizes_size() > rows.sizes_size()) return false;
  // An operator that writes to its argument keeps the dtype of the table.
  if (other.sizes_size() > 0 && other.dtype() != rows.dtype()) return false;
  const int skipped = rows.sizes_size() - other.sizes_size();
  for (int i = 0; i < other.sizes_size(); ++i) {
    const bool fits = other.sizes(i) == 1 || other.sizes(i) == rows.sizes(skipped + i);
    if (!fits || (skipped + i == 0 && other.sizes(i) != 1)) return false;
  }
  return true;
}

bool product(const RowCall& call) {
  if (call.table(0) >= 0 && call.table(0) == call.table(1)) return call.value(0) == call.value(1);
  return same_for_all_rows(call, 0, 1) || same_for_all_rows(call, 1, 0);
}

bool quotient(const RowCall& call) {
  return same_for_all_rows(call, 0, 1);
}

bool sum_of_tables(const RowCall& call) {
  return call.table(0) >= 0 && call.table(1) >= 0 && call.number(2) &&
         call.type(0).dtype() == call.type(1).dtype() &&
         std::ranges::equal(call.type(0).sizes(), call.type(1).sizes());
}

// Returns true if the norm has an order for which zeros do not count. The maximum norm is left out:
// LibTorch does not define it for a tensor without rows.
bool norm_of_all(const RowCall& call) {
  const double order = call.is_none(1) ? 2 : call.number(1).value_or(-1);
  return first_only(call) && order >= 0 && std::isfinite(order);
}

// (self, ord, dim, keepdim, dtype): the norm must be over all dimensions.
bool vector_norm_of_all(const RowCall& call) {
  if (!norm_of_all(call)) return false;
  const Argument& dims = call.node.arguments(2);
  return dims.has_none() ||
         (dims.has_integers() && (dims.integers().items_size() == 0 ||
                                  dims.integers().items_size() == call.type(0).sizes_size()));
}

struct KnownRowOperator {
  Effect effect;
  bool (*holds)(const RowCall& call);
};

const std::unordered_map<std::string, KnownRowOperator>& known_row_operators() {
  static const auto* all = new std::unordered_map<std::string, KnownRowOperator>{
      {"aten::alias", {Effect::kSame, first_only}},
      {"aten::detach", {Effect::kSame, first_only}},
      {"aten::_to_copy", {Effect::kEach, dense_result}},
      {"aten::abs", {Effect::kEach, first_only}},
      {"aten::clamp", {Effect::kEach, range_around_zero}},
      {"aten::clamp_max", {Effect::kEach, at_least_zero}},
      {"aten::clamp_min", {Effect::kEach, at_most_zero}},
      {"aten::clone", {Effect::kEach, first_only}},
      {"aten::div.Scalar", {Effect::kEach, first_only}},
      {"aten::div.Tensor", {Effect::kEach, quotient}},
      {"aten::mul.Scalar", {Effect::kEach, first_only}},
      {"aten::mul.Tensor", {Effect::kEach, product}},
      {"aten::nan_to_num", {Effect::kEach, first_only}},
      {"aten::neg", {Effect::kEach, first_only}},
      {"aten::pow.Tensor_Scalar", {Effect::kEach, positive_exponent}},
      {"aten::sign", {Effect::kEach, first_only}},
      {"aten::sqrt", {Effect::kEach, first_only}},
      {"aten::_foreach_div.Scalar", {Effect::kEach, first_only}},
      {"aten::_foreach_div.Tensor", {Effect::kEach, first_only}},
      {"aten::_foreach_mul.Scalar", {Effect::kEach, first_only}},
      {"aten::_foreach_mul.Tensor", {Effect::kEach, first_only}},
      {"aten::_foreach_neg", {Effect::kEach, first_only}},
      {"aten::add.Tensor", {Effect::kSum, sum_of_tables}},
      {"aten::sub.Tensor", {Effect::kSum, sum_of_tables}},
      {"aten::_foreach_norm.Scalar", {Effect::kReduces, norm_of_all}},
      {"aten::linalg_vector_norm", {Effect::kReduces, vector_norm_of_all}},
      {"aten::norm.Scalar", {Effect::kReduces, norm_of_all}},
      {"aten::norm.ScalarOpt_dtype", {Effect::kReduces, norm_of_all}},
      {"aten::sum", {Effect::kReduces, first_only}},
      {"trireme::push_gradient", {Effect::kPushes, gradient_of_push}},
  };
  return *all;
}

// Removes the underscore that marks an operator which writes to its first argument, as in
// "aten::mul_.Tensor". Returns false if there is none.
bool remove_write_mark(std::string& op) {
  const size_t end = std::min(op.find('.'), op.size());
  if (end == 0 || op[end - 1] != '_') return false;
  op.erase(end - 1, 1);
  return true;
}

// Returns true if a list has the same table gradient twice.
bool has_table_twice(const RowCall& call, const Argument& list) {
  std::vector<int> seen;
  for_each_value(list, [&](int64_t id) { seen.push_back(call.table_of(id)); });
  std::erase(seen, -1);
  std::ranges::sort(seen);
  return std::ranges::adjacent_find(seen) != seen.end();
}

}  // namespace

RowRule row_rule(const proto::GraphDef& def, const proto::Node& node, const TableOf& table_of) {
  RowRule rule{.op = node.op()};
  rule.in_place = remove_write_mark(rule.op);
  const RowCall call{def, node, table_of};
  const auto known = known_row_operators().find(rule.op);
  if (known == known_row_operators().end() || !known->second.holds(call)) return rule;
  // A write to a tensor that is not a table gradient needs the whole of it, and a list that names
  // a tensor twice writes to it twice.
  if (rule.in_place) {
    const Argument& written = node.arguments(0);
    if (written.has_values() ? has_table_twice(call, written) : call.table(0) < 0) return rule;
  }
  rule.effect = known->second.effect;
  return rule;
}

}  // namespace trireme::internal
