// Compiles a graph into a plan, in two passes.
//
// The first pass walks over the nodes in captured order. It looks up each operator, decodes its
// arguments by its schema, and checks that every value is made once and before it is used. It also
// joins the values that may share memory. Which ones those are follows from the operators and is
// not stated by the graph, because the graph may come from an untrusted peer and locks and copies
// depend on it.
//
// The second pass (finish()) knows all nodes, so that it can tell which memory is written at all
// and which use of a value is the last. From that it derives
//   - the constants that each run copies, because some node writes to them;
//   - the outputs that are copied, because they share memory with a constant or a variable;
//   - the variables that each node touches, which PartRun locks around the node;
//   - the first node that needs each receive, and the point after which each send may go;
//   - the last use of each value, where a run releases it.
// Last uses are planned at the end, because an output or a send may be a later use than any node.
#include "trireme/graph/plan.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/graph/graph_header.h"
#include "trireme/graph/operators.h"
#include "trireme/graph/value_memory.h"

namespace trireme::internal {
namespace {

using proto::Value;

class Compiler {
 public:
  explicit Compiler(std::shared_ptr<const GraphData> graph)
      : data_(*graph), def_(graph->def), memory_(std::min(def_.values_size(), kMaxValues)) {
    plan_ = std::make_shared<Plan>();
    plan_->graph = std::move(graph);
  }

  absl::StatusOr<std::shared_ptr<const Plan>> compile() {
    TRIREME_RETURN_IF_ERROR(check_header(def_, data_.constants.size()));
    TRIREME_RETURN_IF_ERROR(bind_source_values());
    for (int i = 0; i < def_.nodes_size(); ++i) {
      absl::Status status = add_node(def_.nodes(i), i);
      if (!status.ok()) {
        return make_status(error_code(status),
                           absl::StrCat("node ", i, ", operator '", def_.nodes(i).op(),
                                        "': ", std::string(status.message())),
                           {"", absl::StrCat("graph '", def_.name(), "'")});
      }
    }
    TRIREME_RETURN_IF_ERROR(finish());
    return std::shared_ptr<const Plan>(plan_);
  }

 private:
  // Finds the value of each input, constant, variable and receive.
  absl::Status bind_source_values() {
    plan_->input_values.assign(def_.inputs(), -1);
    plan_->constant_values.assign(data_.constants.size(), -1);
    plan_->variable_values.assign(def_.variables_size(), -1);
    plan_->received_values.assign(def_.receives_size(), -1);
    plan_->constant_written.assign(data_.constants.size(), false);
    plan_->variable_written.assign(def_.variables_size(), false);
    made_.assign(def_.values_size(), false);
    last_use_.assign(def_.values_size(), -1);
    for (int i = 0; i < def_.values_size(); ++i) {
      const Value& value = def_.values(i);
      TRIREME_RETURN_IF_ERROR(check_type(value.type()));
      if (value.source() == Value::RESULT) continue;
      std::vector<int64_t>* values = value.source() == Value::INPUT      ? &plan_->input_values
                                     : value.source() == Value::CONSTANT ? &plan_->constant_values
                                     : value.source() == Value::VARIABLE ? &plan_->variable_values
                                     : value.source() == Value::RECEIVED ? &plan_->received_values
                                                                         : nullptr;
      if (values == nullptr || value.index() >= values->size() || (*values)[value.index()] != -1) {
        return invalid_argument(
            absl::StrCat("value ", i, " is input, constant, variable or receive ", value.index(),
                         ", which does not exist or already has a value"));
      }
      (*values)[value.index()] = i;
      made_[i] = true;
    }
    return absl::OkStatus();
  }

  // Checks that a value exists by the time a node uses it, and records the use.
  absl::Status use(int64_t value, int node, const std::string& argument) {
    if (value < 0) return absl::OkStatus();
    if (value >= def_.values_size()) {
      return invalid_argument(absl::StrCat("argument '", argument, "' is value ", value,
                                           ", but the graph has ", def_.values_size(), " values"));
    }
    if (!made_[value]) {
      return invalid_argument(
          absl::StrCat("argument '", argument, "' is value ", value,
                       ", which no earlier node makes: the graph has a cycle, or its nodes are "
                       "out of order"));
    }
    last_use_[value] = node;
    return absl::OkStatus();
  }

  // Parts of an LSTM's workspace are never written, so they show what the memory held before. No
  // other operator may read it, and it may not leave the graph.
  absl::Status check_not_workspace(int64_t value) {
    if (value < 0 || !workspaces_.contains(value)) return absl::OkStatus();
    return invalid_argument(absl::StrCat("value ", value,
                                         " is the workspace of an LSTM's forward pass, which only "
                                         "'aten::mkldnn_rnn_layer_backward' may use"));
  }

  // Checks that an LSTM's backward operator gets the workspace of its own forward operator. The
  // workspace of a layer with another input has unwritten bytes where this layer reads numbers.
  absl::Status check_workspace_input(const NodePlan& plan) {
    for (size_t i = 0; i < plan.arguments.size(); ++i) {
      if (!takes_lstm_workspace(plan.op, i)) continue;
      const auto made = workspaces_.find(plan.arguments[i].value);
      if (plan.arguments[i].kind != ArgumentPlan::Kind::kValue || made == workspaces_.end()) {
        continue;
      }
      const NodePlan& forward = plan_->nodes[made->second];
      const auto hidden = [](const NodePlan& node) {
        return node.arguments[*node.op.schema().argumentIndexWithName("hidden_size")].constant;
      };
      if (forward.arguments[0].value != plan.arguments[0].value ||
          hidden(forward).toInt() != hidden(plan).toInt()) {
        return invalid_argument(
            "the workspace of an LSTM's forward pass belongs to another input or hidden size");
      }
    }
    return absl::OkStatus();
  }

  // Checks that a value which a node makes exists and is made only once.
  absl::Status make(int64_t value) {
    if (value < 0) return absl::OkStatus();
    if (value >= def_.values_size() || made_[value]) {
      return invalid_argument(absl::StrCat(
          "it makes value ", value,
          value >= def_.values_size() ? ", which does not exist" : ", which was made before"));
    }
    made_[value] = true;
    return absl::OkStatus();
  }

  absl::Status add_node(const proto::Node& node, int index) {
    TRIREME_ASSIGN_OR_RETURN(c10::OperatorHandle op, find_allowed_operator(node.op()));
    const auto& schema = op.schema();
    if (node.arguments_size() != static_cast<int>(schema.arguments().size())) {
      return invalid_argument(absl::StrCat("it has ", node.arguments_size(),
                                           " arguments; its schema lists ",
                                           schema.arguments().size()));
    }
    const auto scopes = static_cast<uint32_t>(def_.scopes_size());
    if (node.scope() > scopes || node.module() > scopes || node.device_reason() > scopes ||
        node.differentiates() > static_cast<uint32_t>(def_.nodes_size())) {
      return invalid_argument("it names a scope, a module or a node that does not exist");
    }
    NodePlan plan{op, {}, {}, {}, {}};
    plan.rules = call_rules(op);
    for (int i = 0; i < node.arguments_size(); ++i) {
      const c10::Argument& declared = schema.arguments()[i];
      TRIREME_ASSIGN_OR_RETURN(ArgumentPlan argument, decode_argument(node.arguments(i), declared));
      if (argument.kind == ArgumentPlan::Kind::kValue) {
        TRIREME_RETURN_IF_ERROR(use(argument.value, index, declared.name()));
        if (!takes_lstm_workspace(op, i))
          TRIREME_RETURN_IF_ERROR(check_not_workspace(argument.value));
      }
      for (int64_t value : argument.values) {
        TRIREME_RETURN_IF_ERROR(use(value, index, declared.name()));
        TRIREME_RETURN_IF_ERROR(check_not_workspace(value));
      }
      argument.required =
          declared.type()->kind() == c10::TypeKind::TensorType && !takes_undefined(op);
      if (argument.required && argument.kind == ArgumentPlan::Kind::kConstant) {
        return invalid_argument(
            absl::StrCat("argument '", declared.name(), "' must be a tensor, but is none"));
      }
      plan.has_generator |= argument.kind == ArgumentPlan::Kind::kGenerator;
      plan.arguments.push_back(std::move(argument));
    }
    TRIREME_RETURN_IF_ERROR(check_workspace_input(plan));
    plan.random = is_random(op);
    plan.writes = !writable_arguments(op).empty();
    plan.makes_uninitialized = makes_uninitialized(op);
    plan.moves = node.op() == "aten::_to_copy";
    for (const ArgumentPlan& argument : plan.arguments) {
      if (!plan.moves || !argument.constant.isDevice()) continue;
      plan_->has_moves |= !argument.constant.toDevice().is_cpu();
    }
    TRIREME_RETURN_IF_ERROR(add_results(node, plan));
    // The operator's name decides as well as the graph's flag: a variable must keep its shape even
    // if the graph lies.
    if (node.reshapes() || changes_shape(op)) {
      for (int i : writable_arguments(op)) {
        if (plan.arguments[i].kind == ArgumentPlan::Kind::kValue) plan.aliased.push_back(i);
      }
    }
    join_aliases(plan);
    plan_->nodes.push_back(std::move(plan));
    return absl::OkStatus();
  }

  absl::Status add_results(const proto::Node& node, NodePlan& plan) {
    const auto& returns = plan.op.schema().returns();
    if (node.results_size() != static_cast<int>(returns.size())) {
      return invalid_argument(absl::StrCat("it has ", node.results_size(),
                                           " results; its schema lists ", returns.size()));
    }
    for (int i = 0; i < node.results_size(); ++i) {
      const proto::Argument& result = node.results(i);
      NodePlan::Result& planned = plan.results.emplace_back();
      planned.is_list = returns[i].type()->kind() == c10::TypeKind::ListType;
      const bool is_tensor = returns[i].type()->kind() == c10::TypeKind::TensorType;
      if (result.has_none()) continue;
      if (is_tensor && result.kind_case() == proto::Argument::kValue) {
        planned.value = result.value();
        TRIREME_RETURN_IF_ERROR(make(planned.value));
        if (is_lstm_workspace(plan.op, i)) workspaces_[planned.value] = plan_->nodes.size();
      } else if (planned.is_list && result.has_values()) {
        planned.list.assign(result.values().ids().begin(), result.values().ids().end());
        for (int64_t value : planned.list) TRIREME_RETURN_IF_ERROR(make(value));
      } else {
        return invalid_argument(absl::StrCat("result ", i, " must be ", returns[i].type()->str(),
                                             ", but is ", format_argument(result)));
      }
    }
    return absl::OkStatus();
  }

  // Joins the memory of each result with that of the arguments whose memory it may share.
  void join_aliases(const NodePlan& plan) {
    for (size_t r = 0; r < plan.results.size(); ++r) {
      for (size_t a = 0; a < plan.arguments.size(); ++a) {
        if (plan.arguments[a].kind == ArgumentPlan::Kind::kConstant ||
            !may_share_memory(plan.op, a, r)) {
          continue;
        }
        const auto note = [&](int64_t argument) {
          if (argument < 0) return;
          if (plan.results[r].value >= 0) memory_.join(plan.results[r].value, argument);
          for (int64_t value : plan.results[r].list) {
            if (value >= 0) memory_.join(value, argument);
          }
        };
        if (plan.arguments[a].kind == ArgumentPlan::Kind::kValue) note(plan.arguments[a].value);
        for (int64_t value : plan.arguments[a].values) note(value);
      }
    }
  }

  absl::Status finish() {
    for (int64_t output : def_.outputs()) {
      if (output >= def_.values_size() || output < -1 || (output >= 0 && !made_[output])) {
        return invalid_argument(absl::StrCat("no node makes output value ", output));
      }
      TRIREME_RETURN_IF_ERROR(check_not_workspace(output));
      if (output >= 0) last_use_[output] = def_.nodes_size();
    }
    for (int i = 0; i < def_.values_size(); ++i) plan_->storages.push_back(memory_.storage_of(i));
    mark_written();
    mark_copied_outputs();
    TRIREME_RETURN_IF_ERROR(mark_variables());
    TRIREME_RETURN_IF_ERROR(plan_receives());
    TRIREME_RETURN_IF_ERROR(plan_sends());
    plan_last_uses();
    return absl::OkStatus();
  }

  // Finds the variables whose memory each node and each output touches. A tensor may share memory
  // with one variable at most: its users lock that variable, and a send or an output names one.
  absl::Status mark_variables() {
    for (size_t i = 0; i < plan_->variable_values.size(); ++i) {
      const int64_t value = plan_->variable_values[i];
      if (value < 0) continue;
      const int64_t owner = memory_.mark_variable(value, static_cast<int64_t>(i));
      if (owner != static_cast<int64_t>(i)) {
        return invalid_argument(
            absl::StrCat("a tensor may share memory with both variable '",
                         def_.variables(static_cast<int>(owner)).name(), "' and variable '",
                         def_.variables(static_cast<int>(i)).name(), "'; copy one of them first"));
      }
    }
    for (int64_t output : def_.outputs()) {
      plan_->output_variables.push_back(memory_.variable_of(output));
    }
    if (!memory_.has_variables()) return absl::OkStatus();
    for (NodePlan& node : plan_->nodes) {
      std::map<uint32_t, bool> touched;
      const std::vector<int> writable = writable_arguments(node.op);
      for (size_t i = 0; i < node.arguments.size(); ++i) {
        const bool writes = std::ranges::find(writable, static_cast<int>(i)) != writable.end();
        const auto note = [&](int64_t value) {
          if (const int64_t variable = memory_.variable_of(value); variable >= 0) {
            touched[static_cast<uint32_t>(variable)] |= writes;
          }
        };
        if (node.arguments[i].kind == ArgumentPlan::Kind::kValue) note(node.arguments[i].value);
        for (int64_t value : node.arguments[i].values) note(value);
      }
      node.variables.assign(touched.begin(), touched.end());
    }
    return absl::OkStatus();
  }

  // Assigns each receive to the first node that needs it. A received generator state names its node
  // itself, since no argument stands for it.
  absl::Status plan_receives() {
    std::vector<int64_t> receive_of(def_.values_size(), -1);
    for (int i = 0; i < def_.receives_size(); ++i) {
      const proto::Receive& receive = def_.receives(i);
      if (receive.generator()) {
        if (receive.before() >= plan_->nodes.size() || plan_->received_values[i] >= 0) {
          return invalid_argument(
              absl::StrCat("receive ", i, " of the generator's state is invalid: node ",
                           receive.before(), " does not exist, or the receive also has a value"));
        }
        plan_->nodes[receive.before()].receives.push_back(i);
      } else if (plan_->received_values[i] >= 0) {
        receive_of[plan_->received_values[i]] = i;
      }
    }
    if (def_.receives_size() == 0) return absl::OkStatus();
    for (NodePlan& node : plan_->nodes) {
      const auto note = [&](int64_t value) {
        if (value < 0 || receive_of[value] < 0) return;
        node.receives.push_back(static_cast<uint32_t>(std::exchange(receive_of[value], -1)));
      };
      for (const ArgumentPlan& argument : node.arguments) {
        if (argument.kind == ArgumentPlan::Kind::kValue) note(argument.value);
        for (int64_t value : argument.values) note(value);
      }
    }
    for (int64_t output : def_.outputs()) {
      if (output >= 0 && def_.values(output).source() == Value::RECEIVED) {
        return invalid_argument(
            absl::StrCat("output value ", output,
                         " is received from another task; the task that makes it must return it"));
      }
    }
    return absl::OkStatus();
  }

  // Checks the sends, orders them by the point at which they go, and finds those that are the last
  // use of their value.
  absl::Status plan_sends() {
    std::vector<uint32_t> ready(def_.values_size(), 0);
    for (uint32_t i = 0; i < plan_->nodes.size(); ++i) {
      for (const NodePlan::Result& result : plan_->nodes[i].results) {
        if (result.value >= 0) ready[result.value] = i + 1;
        for (int64_t value : result.list) {
          if (value >= 0) ready[value] = i + 1;
        }
      }
    }
    for (int i = 0; i < def_.sends_size(); ++i) {
      const proto::Send& send = def_.sends(i);
      if (send.value() < -1 || send.value() >= def_.values_size() ||
          send.after() > plan_->nodes.size() ||
          (send.value() >= 0 &&
           (!made_[send.value()] || def_.values(send.value()).source() == Value::RECEIVED ||
            ready[send.value()] > send.after()))) {
        return invalid_argument(absl::StrCat("send ", i, ", due after ", send.after(),
                                             " nodes, sends value ", send.value(),
                                             ", which no node of this part has made by then"));
      }
      TRIREME_RETURN_IF_ERROR(check_not_workspace(send.value()));
      SendPlan planned;
      planned.index = static_cast<uint32_t>(i);
      planned.value = send.value();
      planned.after = send.after();
      planned.variable = memory_.variable_of(send.value());
      planned.copied = planned.variable >= 0 || memory_.is_written(send.value());
      plan_->sends.push_back(planned);
    }
    std::ranges::stable_sort(plan_->sends, {}, &SendPlan::after);
    // If no node uses a value after its last send, that send releases the value.
    std::unordered_set<int64_t> seen;
    for (auto send = plan_->sends.rbegin(); send != plan_->sends.rend(); ++send) {
      if (send->value < 0 || !seen.insert(send->value).second) continue;
      if (last_use_[send->value] >= static_cast<int>(send->after)) continue;
      send->last_use = true;
      last_use_[send->value] = kTaken;
    }
    return absl::OkStatus();
  }

  void mark_written() {
    for (const NodePlan& node : plan_->nodes) {
      for (int i : writable_arguments(node.op)) {
        const ArgumentPlan& argument = node.arguments[i];
        if (argument.kind == ArgumentPlan::Kind::kValue) memory_.mark_written(argument.value);
        for (int64_t value : argument.values) memory_.mark_written(value);
      }
    }
    for (size_t i = 0; i < plan_->constant_values.size(); ++i) {
      plan_->constant_written[i] = memory_.is_written(plan_->constant_values[i]);
    }
    for (size_t i = 0; i < plan_->variable_values.size(); ++i) {
      plan_->variable_written[i] = memory_.is_written(plan_->variable_values[i]);
    }
  }

  // An output that shares memory with a constant or a variable is copied: the caller may write to
  // it, and later runs may write to the variable.
  void mark_copied_outputs() {
    std::unordered_set<uint32_t> outside;
    for (const auto* values : {&plan_->constant_values, &plan_->variable_values}) {
      for (int64_t value : *values) {
        if (value >= 0) outside.insert(memory_.storage_of(value));
      }
    }
    for (int64_t output : def_.outputs()) {
      plan_->output_copied.push_back(output >= 0 && outside.contains(memory_.storage_of(output)));
    }
  }

  // Decides where a run releases each value. A single argument moves the value out of the table, so
  // that its memory is freed when the operator returns. A value in a list is released after the
  // node. A result that is never used is not stored at all.
  void plan_last_uses() {
    for (int i = 0; i < static_cast<int>(plan_->nodes.size()); ++i) {
      NodePlan& node = plan_->nodes[i];
      // Arguments are pushed from the first to the last. If a value is passed twice, the last one
      // must take the reference, so they are visited from the back.
      for (auto argument = node.arguments.rbegin(); argument != node.arguments.rend(); ++argument) {
        if (argument->kind == ArgumentPlan::Kind::kValue && last_use_[argument->value] == i) {
          argument->last_use = true;
          last_use_[argument->value] = kTaken;
        }
      }
      for (const ArgumentPlan& argument : node.arguments) {
        for (int64_t value : argument.values) {
          if (value >= 0 && last_use_[value] == i) {
            node.free_after.push_back(value);
            last_use_[value] = kTaken;
          }
        }
      }
      // If a value is also in a list, a single argument must not take it: the list may be pushed
      // after it.
      for (ArgumentPlan& argument : node.arguments) {
        const bool also_in_list =
            argument.last_use &&
            std::ranges::any_of(node.arguments, [&](const ArgumentPlan& other) {
              return std::ranges::find(other.values, static_cast<int64_t>(argument.value)) !=
                     other.values.end();
            });
        if (also_in_list) {
          argument.last_use = false;
          node.free_after.push_back(argument.value);
        }
      }
      for (NodePlan::Result& result : node.results) {
        if (result.value >= 0 && last_use_[result.value] == -1) result.value = -1;
      }
    }
  }

  static constexpr int kTaken = -2;  // in last_use_: some use already releases the value

  const GraphData& data_;
  const proto::GraphDef& def_;
  std::shared_ptr<Plan> plan_;
  ValueMemory memory_;
  std::vector<bool> made_;  // true once a value was bound to a source or made by a node
  std::unordered_map<int64_t, size_t> workspaces_;  // LSTM workspaces, with the node that made each
  std::vector<int> last_use_;  // the last node that uses each value; -1 for none
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Plan>> compile(std::shared_ptr<const GraphData> graph) {
  return Compiler(std::move(graph)).compile();
}

}  // namespace trireme::internal
