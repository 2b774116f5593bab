// Walks over the nodes in captured order and appends each one to the part of its task. Arguments
// are looked up with value_on(), which adds a transfer if the value is on another task.
//
// A transfer is identified by the task it goes to, its value, and the number of writes to the
// value's storage so far. If all three are the same, so are the contents, and the transfer is
// reused; after another write a new one is made. Its Send is due once the value is made and the
// last write that comes before the reader in captured order is done. All writes to a storage are on
// one task (placer.h), so that task's own order separates them.
//
// Captured order also makes the cut free of deadlock: every transfer goes from an earlier point of
// the order to a later one.
#include "trireme/placement/cutter.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"
#include "trireme/placement/tensor_bytes.h"

namespace trireme::internal {
namespace {

using proto::Value;

// A part under construction. The maps lead from numbers of the whole graph to numbers of the part.
struct Draft {
  GraphPart part;
  std::shared_ptr<GraphData> graph = std::make_shared<GraphData>();
  std::unordered_map<int64_t, uint32_t> local;    // value to value
  std::unordered_map<uint32_t, uint32_t> scopes;  // 1 + scope to 1 + scope
  std::unordered_map<int, uint32_t> nodes;        // node to 1 + node

  proto::GraphDef& def() { return graph->def; }
};

class Cutter {
 public:
  Cutter(const PlacedGraph& placed, const TaskId& master)
      : placed_(placed), def_(placed.graph->def), master_(master) {}

  std::vector<GraphPart> cut() {
    producers_.assign(def_.values_size(), -1);
    ready_.assign(def_.values_size(), 0);
    for (int i = 0; i < def_.nodes_size(); ++i) {
      handles_.push_back(*find_allowed_operator(def_.nodes(i).op()));
      add_node(i);
    }
    add_outputs();
    std::vector<GraphPart> parts;
    for (auto& [task, draft] : drafts_) {
      draft.part.task = task;
      draft.def().set_inputs(draft.part.inputs.size());
      std::vector<int64_t> leaving(draft.def().outputs().begin(), draft.def().outputs().end());
      for (const proto::Send& send : draft.def().sends()) leaving.push_back(send.value());
      draft.part.small_answer = bytes_of(draft.def(), leaving) <= kSmallAnswer;
      draft.part.graph = std::move(draft.graph);
      parts.push_back(std::move(draft.part));
    }
    std::ranges::stable_partition(parts,
                                  [this](const GraphPart& part) { return part.task == master_; });
    return parts;
  }

 private:
  // Returns the draft of a task's part, creating it at the first use.
  Draft& draft(const TaskId& task) {
    const auto [found, added] = drafts_.try_emplace(task);
    if (added) {
      proto::GraphDef& def = found->second.def();
      def.set_name(def_.name());
      def.set_format(def_.format());
      def.set_torch_version(def_.torch_version());
    }
    return found->second;
  }

  uint32_t storage(int64_t value) const { return placed_.storages[value]; }

  // Returns the task that has a value. Returns nullopt if every task can have it: an input, or a
  // constant that no node has written so far.
  std::optional<TaskId> location(int64_t value) const {
    const Value& described = def_.values(value);
    switch (described.source()) {
      case Value::VARIABLE:
        return placed_.variable_tasks[described.index()];
      case Value::CONSTANT: {
        const auto home = constant_homes_.find(storage(value));
        return home == constant_homes_.end() ? std::nullopt : std::optional<TaskId>(home->second);
      }
      case Value::RESULT:
        return placed_.node_tasks[producers_[value]];
      default:
        return std::nullopt;
    }
  }

  uint32_t add_value(Draft& to, Value::Source source, uint32_t index, int64_t value) {
    const uint32_t number = to.def().values_size();
    Value* added = to.def().add_values();
    *added->mutable_type() = def_.values(value).type();
    added->set_source(source);
    added->set_index(index);
    return number;
  }

  // Returns the part's number for a value that its task has, adding the value if it is new.
  uint32_t own_value(Draft& to, int64_t value) {
    const auto known = to.local.find(value);
    if (known != to.local.end()) return known->second;
    const Value& described = def_.values(value);
    uint32_t index = 0;
    switch (described.source()) {
      case Value::INPUT:
        index = to.part.inputs.size();
        to.part.inputs.push_back(described.index());
        break;
      case Value::CONSTANT:
        index = to.graph->constants.size();
        to.graph->constants.push_back(placed_.graph->constants[described.index()]);
        *to.def().add_constants() = def_.constants(described.index());
        break;
      case Value::VARIABLE: {
        index = to.part.variables.size();
        to.part.variables.push_back(described.index());
        proto::Variable* variable = to.def().add_variables();
        *variable = def_.variables(described.index());
        variable->set_device_reason(scope(to, variable->device_reason()));
        break;
      }
      default:
        break;
    }
    const uint32_t number = add_value(to, described.source(), index, value);
    to.local[value] = number;
    return number;
  }

  // Returns the part's number for a value with its contents at this point of the order. Adds a
  // transfer if another task has it.
  uint32_t value_on(const TaskId& task, int64_t value) {
    Draft& to = draft(task);
    const std::optional<TaskId> from = location(value);
    if (!from || *from == task) return own_value(to, value);
    const auto key = std::make_tuple(task, value, writes_[storage(value)]);
    const auto known = transferred_.find(key);
    if (known != transferred_.end()) return known->second;
    uint32_t number;
    if (const std::optional<int64_t> base = viewed_value(value)) {
      number = rebuild_view(to, task, value, *base);
    } else {
      const uint32_t edge = edges_++;
      proto::Receive* receive = to.def().add_receives();
      receive->set_edge(edge);
      receive->set_from(from->to_string());
      number = add_value(to, Value::RECEIVED, to.def().receives_size() - 1, value);
      Draft& sender = draft(*from);
      const uint32_t own = own_value(sender, value);
      add_send(sender, edge, task, own, std::max(ready_[value], last_write_[storage(value)]));
    }
    transferred_[key] = number;
    return number;
  }

  static void add_send(Draft& from, uint32_t edge, const TaskId& to, int64_t value,
                       uint32_t after) {
    proto::Send* send = from.def().add_sends();
    send->set_edge(edge);
    send->set_to(to.to_string());
    send->set_value(value);
    send->set_after(after);
  }

  // Returns the value that this value is a view of, if the view can be made again elsewhere: its
  // node has one tensor argument and one result, and writes nothing. The view must also have as
  // many elements as that value; otherwise the view itself is sent, since a slice is smaller than
  // the whole.
  std::optional<int64_t> viewed_value(int64_t value) const {
    if (def_.values(value).source() != Value::RESULT) return std::nullopt;
    const int producer = producers_[value];
    const proto::Node& node = def_.nodes(producer);
    const auto& schema = handles_[producer].schema();
    if (node.results_size() != 1 || node.reshapes() ||
        schema.returns()[0].alias_info() == nullptr ||
        !writable_arguments(handles_[producer]).empty()) {
      return std::nullopt;
    }
    std::optional<int64_t> base;
    for (int i = 0; i < node.arguments_size(); ++i) {
      bool other = false;
      for_each_value(node.arguments(i), [&](int64_t argument) {
        other |= base.has_value() || schema.arguments()[i].alias_info() == nullptr;
        base = argument;
      });
      if (other) return std::nullopt;
    }
    if (!base ||
        element_count(def_.values(*base).type()) != element_count(def_.values(value).type())) {
      return std::nullopt;
    }
    return base;
  }

  // Appends a copy of the node that made a view, applied to the transferred value, and returns the
  // number of its result.
  uint32_t rebuild_view(Draft& to, const TaskId& task, int64_t value, int64_t base) {
    const uint32_t viewed = value_on(task, base);
    proto::Node view = copy_of(to, producers_[value]);
    for (auto& argument : *view.mutable_arguments()) {
      if (argument.kind_case() == proto::Argument::kValue) argument.set_value(viewed);
    }
    const uint32_t number = to.def().values_size();
    Value* added = to.def().add_values();
    *added->mutable_type() = def_.values(value).type();
    added->set_source(Value::RESULT);
    view.mutable_results(0)->set_value(number);
    *to.def().add_nodes() = std::move(view);
    return number;
  }

  // Returns the part's number for a scope (1 + index), adding it if it is new; 0 for none.
  uint32_t scope(Draft& to, uint32_t number) {
    if (number == 0) return 0;
    const auto [found, added] = to.scopes.try_emplace(number, to.scopes.size() + 1);
    if (added) to.def().add_scopes(def_.scopes(number - 1));
    return found->second;
  }

  // Returns a copy of a node for a part. Its arguments and results still have the numbers of the
  // whole graph.
  proto::Node copy_of(Draft& to, int index) {
    proto::Node node = def_.nodes(index);
    node.set_scope(scope(to, node.scope()));
    node.set_module(scope(to, node.module()));
    node.set_device_reason(scope(to, node.device_reason()));
    node.set_colocated_with(0);
    const auto forward = to.nodes.find(static_cast<int>(node.differentiates()) - 1);
    node.set_differentiates(forward == to.nodes.end() ? 0 : forward->second);
    return node;
  }

  void add_node(int index) {
    const TaskId& task = placed_.node_tasks[index];
    const proto::Node& node = def_.nodes(index);
    const c10::OperatorHandle& op = handles_[index];
    const std::vector<int> writable = writable_arguments(op);
    // A constant that is written exists once per step, on the task that writes it.
    for (int i : writable) {
      for_each_value(node.arguments(i), [&](int64_t value) {
        if (def_.values(value).source() == Value::CONSTANT) {
          constant_homes_.try_emplace(storage(value), task);
        }
      });
    }
    Draft& to = draft(task);
    proto::Node own = copy_of(to, index);
    for (auto& argument : *own.mutable_arguments()) {
      if (argument.kind_case() == proto::Argument::kValue) {
        argument.set_value(value_on(task, argument.value()));
      } else if (argument.has_values()) {
        for (int64_t& value : *argument.mutable_values()->mutable_ids()) {
          if (value >= 0) value = value_on(task, value);
        }
      }
    }
    if (is_random(op)) transfer_generator(to, task);
    // The number of nodes of this part that have run once this one has. Looking up the arguments
    // may have added nodes that make views.
    const uint32_t done = to.def().nodes_size() + 1;
    const auto add_result = [&](int64_t value) {
      producers_[value] = index;
      ready_[value] = done;
      return own_value(to, value);
    };
    for (auto& result : *own.mutable_results()) {
      if (result.kind_case() == proto::Argument::kValue) {
        result.set_value(add_result(result.value()));
      } else if (result.has_values()) {
        for (int64_t& value : *result.mutable_values()->mutable_ids()) {
          if (value >= 0) value = add_result(value);
        }
      }
    }
    for (int i : writable) {
      for_each_value(node.arguments(i), [&](int64_t value) {
        ++writes_[storage(value)];
        last_write_[storage(value)] = done;
      });
    }
    to.nodes[index] = done;
    *to.def().add_nodes() = std::move(own);
  }

  // Makes the next node of the part draw from where the last random operator stopped. Adds a
  // transfer of the generator's state if that was on another task. Must be called before the node
  // is added.
  void transfer_generator(Draft& to, const TaskId& task) {
    to.def().set_random(true);
    if (generator_ && generator_->first != task) {
      const uint32_t edge = edges_++;
      proto::Receive* receive = to.def().add_receives();
      receive->set_edge(edge);
      receive->set_from(generator_->first.to_string());
      receive->set_generator(true);
      receive->set_before(to.def().nodes_size());
      add_send(draft(generator_->first), edge, task, -1, generator_->second);
    }
    generator_ = {task, to.def().nodes_size() + 1};
  }

  // Adds each output to the part of the task that has it, or to the master's part if every task has
  // it.
  void add_outputs() {
    for (int i = 0; i < def_.outputs_size(); ++i) {
      const int64_t value = def_.outputs(i);
      const std::optional<TaskId> where = value < 0 ? std::nullopt : location(value);
      Draft& from = draft(where.value_or(master_));
      from.part.outputs.push_back(i);
      from.def().add_outputs(value < 0 ? -1 : own_value(from, value));
    }
  }

  const PlacedGraph& placed_;
  const proto::GraphDef& def_;
  const TaskId master_;
  std::vector<c10::OperatorHandle> handles_;
  std::map<TaskId, Draft> drafts_;
  std::vector<int> producers_;      // the node that makes each value; -1 for none so far
  std::vector<uint32_t> ready_;     // number of nodes of its part that run before each value exists
  std::map<uint32_t, int> writes_;  // number of writes to each storage so far
  std::map<uint32_t, uint32_t> last_write_;    // like ready_, for the last write to each storage
  std::map<uint32_t, TaskId> constant_homes_;  // task of each written constant, by storage
  // Number of a transferred value in the receiving part, by task, value and writes so far.
  std::map<std::tuple<TaskId, int64_t, int>, uint32_t> transferred_;
  // The task that drew random numbers last, and the number of its nodes up to that draw, inclusive.
  std::optional<std::pair<TaskId, uint32_t>> generator_;
  uint32_t edges_ = 0;  // number of transfers so far
};

}  // namespace

uint64_t bytes_of(const proto::GraphDef& def, const std::vector<int64_t>& values) {
  uint64_t bytes = 0;
  for (int64_t value : values) {
    if (value < 0) continue;
    const proto::TensorType& type = def.values(static_cast<int>(value)).type();
    if (type.sparse()) return std::numeric_limits<uint64_t>::max();
    bytes += static_cast<uint64_t>(tensor_bytes(type));
  }
  return bytes;
}

std::vector<GraphPart> cut(const PlacedGraph& placed, const TaskId& master) {
  return Cutter(placed, master).cut();
}

}  // namespace trireme::internal
