#include "trireme/graph/graph.h"

#include <c10/core/ScalarType.h>

#include <map>
#include <ostream>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/plan.h"

namespace trireme {
namespace {

using internal::Plan;

std::string format_type(const proto::TensorType& type) {
  return absl::StrCat(c10::toString(static_cast<c10::ScalarType>(type.dtype())), "[",
                      absl::StrJoin(type.sizes(), ", "), "]", type.sparse() ? " sparse" : "");
}

// Returns the values that an argument or a result names.
std::vector<int64_t> values_of(const proto::Argument& argument) {
  std::vector<int64_t> values;
  if (argument.kind_case() == proto::Argument::kValue) values.push_back(argument.value());
  for (int64_t value : argument.values().ids()) {
    if (value >= 0) values.push_back(value);
  }
  return values;
}

// Returns the name of a value for people: "variable 'w'", "input 0", "%12" for a result.
std::string name_of(const proto::GraphDef& def, int64_t value) {
  const proto::Value& described = def.values(value);
  switch (described.source()) {
    case proto::Value::INPUT:
      return absl::StrCat("input ", described.index());
    case proto::Value::CONSTANT:
      return absl::StrCat("constant ", described.index());
    case proto::Value::VARIABLE:
      return absl::StrCat("variable '", def.variables(described.index()).name(), "'");
    default:
      return absl::StrCat("%", value);
  }
}

std::string format_operand(const proto::GraphDef& def, const proto::Argument& argument) {
  if (argument.kind_case() == proto::Argument::kValue) return name_of(def, argument.value());
  if (!argument.has_values()) return internal::format_argument(argument);
  std::vector<std::string> names;
  for (int64_t value : argument.values().ids()) {
    names.push_back(value < 0 ? "none" : name_of(def, value));
  }
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

// Returns the names of the variables whose memory a node may write, directly or through a view.
std::set<std::string> written_variables(const Plan& plan, int node) {
  const proto::GraphDef& def = plan.graph->def;
  std::map<uint32_t, std::string> storages;
  for (int64_t value : plan.variable_values) {
    if (value >= 0) storages[plan.storages[value]] = name_of(def, value);
  }
  std::set<std::string> written;
  for (int i : internal::writable_arguments(plan.nodes[node].op)) {
    for (int64_t value : values_of(def.nodes(node).arguments(i))) {
      const auto found = storages.find(plan.storages[value]);
      if (found != storages.end()) written.insert(found->second);
    }
  }
  return written;
}

// Returns the device of an operator or a variable, and the reason for it.
std::string explain_device(const proto::GraphDef& def, const std::string& device, uint32_t reason) {
  if (device.empty() && reason == 0) return "the session's master task: no scope names a device";
  return absl::StrCat(device.empty() ? "the task's default device" : device, ": ",
                      reason == 0 ? "no scope names it" : def.scopes(reason - 1));
}

// Returns the two lines of explain() about a node: what it computes, and where and why.
std::string explain_node(const Plan& plan, int i) {
  const proto::GraphDef& def = plan.graph->def;
  const proto::Node& node = def.nodes(i);
  std::vector<std::string> results, arguments;
  for (const auto& result : node.results()) {
    for (int64_t value : values_of(result)) {
      results.push_back(absl::StrCat("%", value, " ", format_type(def.values(value).type())));
    }
  }
  for (const auto& argument : node.arguments()) arguments.push_back(format_operand(def, argument));
  std::string line = absl::StrCat(i, "\t", results.empty() ? "-" : absl::StrJoin(results, ", "),
                                  " = ", node.op(), "(", absl::StrJoin(arguments, ", "), ")");
  absl::StrAppend(&line, "\n\ton ", explain_device(def, node.device(), node.device_reason()));
  if (node.module() > 0) absl::StrAppend(&line, "; module ", def.scopes(node.module() - 1));
  if (node.scope() > 0) absl::StrAppend(&line, "; scope ", def.scopes(node.scope() - 1));
  if (node.differentiates() > 0) {
    absl::StrAppend(&line, "; gradient of node ", node.differentiates() - 1, " (",
                    def.nodes(node.differentiates() - 1).op(), ")");
  }
  const std::set<std::string> written = written_variables(plan, i);
  if (!written.empty()) absl::StrAppend(&line, "; writes ", absl::StrJoin(written, ", "));
  return line + "\n";
}

// Returns the text as a quoted string of the DOT language.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

}  // namespace

Graph::Graph(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}

Graph Graph::load(const std::string& path) {
  auto data = value_or_throw(internal::load_graph_file(path));
  return Graph(value_or_throw(internal::compile(std::move(data))));
}

void Graph::save(const std::string& path) const {
  throw_if_error(internal::save_graph_file(*plan_->graph, path));
}

const std::string& Graph::name() const {
  return plan_->graph->def.name();
}

size_t Graph::size() const {
  return plan_->nodes.size();
}

std::string Graph::explain() const {
  const proto::GraphDef& def = plan_->graph->def;
  std::string text = absl::StrCat("graph '", def.name(), "': ", def.nodes_size(), " operators, ",
                                  def.inputs(), " inputs, ", def.variables_size(), " variables, ",
                                  def.constants_size(), " constants, ", def.outputs_size(),
                                  " outputs", def.random() ? "; draws random numbers" : "", "\n");
  for (int i = 0; i < def.variables_size(); ++i) {
    const proto::Variable& variable = def.variables(i);
    absl::StrAppend(
        &text, "variable '", variable.name(), "' ", format_type(variable.type()),
        plan_->variable_written[i] ? ", written" : ", read only",
        variable.slot_of().empty() ? "" : absl::StrCat(", state of '", variable.slot_of(), "'"),
        ", on ", explain_device(def, variable.device(), variable.device_reason()), "\n");
  }
  for (int i = 0; i < def.nodes_size(); ++i) text += explain_node(*plan_, i);
  std::vector<std::string> outputs;
  for (int64_t output : def.outputs()) {
    outputs.push_back(output < 0 ? "none" : name_of(def, output));
  }
  return absl::StrCat(text, "returns ", outputs.empty() ? "nothing" : absl::StrJoin(outputs, ", "),
                      "\n");
}

std::string Graph::dot() const {
  const proto::GraphDef& def = plan_->graph->def;
  std::string text = absl::StrCat("digraph ", quoted(def.name()), " {\n  node [shape=box];\n");
  std::vector<int> makers(def.values_size(), -1);
  for (int i = 0; i < def.nodes_size(); ++i) {
    absl::StrAppend(&text, "  n", i, " [label=", quoted(def.nodes(i).op()), "];\n");
    for (const auto& argument : def.nodes(i).arguments()) {
      for (int64_t value : values_of(argument)) {
        if (makers[value] >= 0) {
          absl::StrAppend(&text, "  n", makers[value], " -> n", i,
                          " [label=", quoted(format_type(def.values(value).type())), "];\n");
        } else {
          absl::StrAppend(&text, "  v", value,
                          " [shape=ellipse, label=", quoted(name_of(def, value)), "];\n  v", value,
                          " -> n", i, ";\n");
        }
      }
    }
    for (const auto& result : def.nodes(i).results()) {
      for (int64_t value : values_of(result)) makers[value] = i;
    }
  }
  for (int i = 0; i < def.outputs_size(); ++i) {
    if (def.outputs(i) < 0 || makers[def.outputs(i)] < 0) continue;
    absl::StrAppend(&text, "  o", i, " [shape=ellipse, label=\"output ", i, "\"];\n  n",
                    makers[def.outputs(i)], " -> o", i, ";\n");
  }
  return text + "}\n";
}

std::ostream& operator<<(std::ostream& out, const Graph& graph) {
  return out << graph.explain();
}

}  // namespace trireme
