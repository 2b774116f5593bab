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
      : data_(*graph), def_(graph->def), memory_(std::min(def_.values_size(), kMostValues)) {
    plan_ = std::make_shared<Plan>();
    plan_->graph = std::move(graph);
  }

  absl::StatusOr<std::shared_ptr<const Plan>> compile() {
    TRIREME_RETURN_IF_ERROR(check_header(def_, data_.constants.size()));
    TRIREME_RETURN_IF_ERROR(place_sources());
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
  absl::Status place_sources() {
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
      std::vector<int64_t>* places = value.source() == Value::INPUT      ? &plan_->input_values
                                     : value.source() == Value::CONSTANT ? &plan_->constant_values
                                     : value.source() == Value::VARIABLE ? &plan_->variable_values
                                     : value.source() == Value::RECEIVED ? &plan_->received_values
                                                                         : nullptr;
      if (places == nullptr || value.index() >= places->size() || (*places)[value.index()] != -1) {
        return invalid_argument(absl::StrCat("value ", i,
                                             " is input, constant, variable or receive ",
                                             value.index(), ", which does not exist or is taken"));
      }
      (*places)[value.index()] = i;
      made_[i] = true;
    }
    return absl::OkStatus();
  }

  absl::Status use(int64_t value, int node, const std::string& argument) {
    if (value < 0) return absl::OkStatus();
    if (value >= def_.values_size()) {
      return invalid_argument(
          absl::StrCat("argument '", argument, "' is value ", value, " of ", def_.values_size()));
    }
    if (!made_[value]) {
      return invalid_argument(
          absl::StrCat("argument '", argument, "' is value ", value,
                       ", which no node before this one makes: a cycle, or nodes that "
                       "are out of order"));
    }
    last_use_[value] = node;
    return absl::OkStatus();
  }

  absl::Status check_visible(int64_t value) {
    if (value < 0 || !records_.contains(value)) return absl::OkStatus();
    return invalid_argument(absl::StrCat("value ", value,
                                         " is the record of an LSTM's forward pass, which only "
                                         "'aten::mkldnn_rnn_layer_backward' may use"));
  }

  // A record that another input made has unwritten bytes where this layer reads numbers.
  absl::Status check_record(const NodePlan& plan) {
    for (size_t i = 0; i < plan.arguments.size(); ++i) {
      if (!takes_record(plan.op, i)) continue;
      const auto made = records_.find(plan.arguments[i].value);
      if (plan.arguments[i].kind != ArgumentPlan::Kind::kValue || made == records_.end()) continue;
      const NodePlan& forward = plan_->nodes[made->second];
      const auto hidden = [](const NodePlan& node) {
        return node.arguments[*node.op.schema().argumentIndexWithName("hidden_size")].constant;
      };
      if (forward.arguments[0].value != plan.arguments[0].value ||
          hidden(forward).toInt() != hidden(plan).toInt()) {
        return invalid_argument("the record of an LSTM's forward pass belongs to another input");
      }
    }
    return absl::OkStatus();
  }

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
    if (node.scope() > static_cast<uint32_t>(def_.scopes_size()) ||
        node.module() > static_cast<uint32_t>(def_.scopes_size()) ||
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
        if (!takes_record(op, i)) TRIREME_RETURN_IF_ERROR(check_visible(argument.value));
      }
      for (int64_t value : argument.values) {
        TRIREME_RETURN_IF_ERROR(use(value, index, declared.name()));
        TRIREME_RETURN_IF_ERROR(check_visible(value));
      }
      argument.required =
          declared.type()->kind() == c10::TypeKind::TensorType && !takes_undefined(op);
      if (argument.required && argument.kind == ArgumentPlan::Kind::kConstant) {
        return invalid_argument(
            absl::StrCat("argument '", declared.name(), "' must be a tensor and is none"));
      }
      plan.has_generator |= argument.kind == ArgumentPlan::Kind::kGenerator;
      plan.arguments.push_back(std::move(argument));
    }
    TRIREME_RETURN_IF_ERROR(check_record(plan));
    plan.random = is_random(op);
    plan.writes = !writable_arguments(op).empty();
    plan.makes_uninitialized = makes_uninitialized(op);
    TRIREME_RETURN_IF_ERROR(add_results(node, plan));
    // Not only if the graph says so: a variable keeps its shape, whoever wrote the graph.
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
        if (is_record(plan.op, i)) records_[planned.value] = plan_->nodes.size();
      } else if (planned.is_list && result.has_values()) {
        planned.list.assign(result.values().ids().begin(), result.values().ids().end());
        for (int64_t value : planned.list) TRIREME_RETURN_IF_ERROR(make(value));
      } else {
        return invalid_argument(absl::StrCat("result ", i, " must be ", returns[i].type()->str(),
                                             " and is ", format_argument(result)));
      }
    }
    return absl::OkStatus();
  }

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
        return invalid_argument(absl::StrCat("output value ", output, " is never made"));
      }
      TRIREME_RETURN_IF_ERROR(check_visible(output));
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

  absl::Status mark_variables() {
    for (size_t i = 0; i < plan_->variable_values.size(); ++i) {
      const int64_t value = plan_->variable_values[i];
      if (value < 0) continue;
      const int64_t owner = memory_.mark_variable(value, static_cast<int64_t>(i));
      if (owner != static_cast<int64_t>(i)) {
        return invalid_argument(absl::StrCat("an operator makes one tensor of variables '",
                                             def_.variables(static_cast<int>(owner)).name(),
                                             "' and '", def_.variables(static_cast<int>(i)).name(),
                                             "'; copy one of them first"));
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

  absl::Status plan_receives() {
    std::vector<int64_t> receive_of(def_.values_size(), -1);
    for (int i = 0; i < def_.receives_size(); ++i) {
      const proto::Receive& receive = def_.receives(i);
      if (receive.generator()) {
        if (receive.before() >= plan_->nodes.size() || plan_->received_values[i] >= 0) {
          return invalid_argument(absl::StrCat("receive ", i,
                                               " of the generator comes before node ",
                                               receive.before(), ", which does not exist"));
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
            absl::StrCat("output value ", output, " is received from another task"));
      }
    }
    return absl::OkStatus();
  }

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
        return invalid_argument(absl::StrCat("send ", i, " after node ", send.after(),
                                             " is of value ", send.value(),
                                             ", which is not there then"));
      }
      TRIREME_RETURN_IF_ERROR(check_visible(send.value()));
      SendPlan planned;
      planned.index = static_cast<uint32_t>(i);
      planned.value = send.value();
      planned.after = send.after();
      planned.variable = memory_.variable_of(send.value());
      planned.copied = planned.variable >= 0 || memory_.is_written(send.value());
      plan_->sends.push_back(planned);
    }
    std::ranges::stable_sort(plan_->sends, {}, &SendPlan::after);
    // The last send of a value that no node uses after it lets go of it.
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

  void plan_last_uses() {
    for (int i = 0; i < static_cast<int>(plan_->nodes.size()); ++i) {
      NodePlan& node = plan_->nodes[i];
      // From the back, so that of two places for one value the later takes the reference.
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
      // A value that is used later in a list must not be taken by a single argument before it.
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

  static constexpr int kTaken = -2;

  const GraphData& data_;
  const proto::GraphDef& def_;
  std::shared_ptr<Plan> plan_;
  ValueMemory memory_;
  std::vector<bool> made_;
  std::unordered_map<int64_t, size_t>
      records_;                // values with former contents of memory, and their makers
  std::vector<int> last_use_;  // the last node that uses the value; -1 for none
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Plan>> compile(std::shared_ptr<const GraphData> graph) {
  return Compiler(std::move(graph)).compile();
}

}  // namespace trireme::internal
