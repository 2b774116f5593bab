#include "trireme/ps/ps_step.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/graph/describe_node.h"
#include "trireme/ps/row_gradients.h"
#include "trireme/ps/variable_uses.h"

// A step is captured as if its variables were local: its graph reads and writes them in place. To
// run it on a worker whose variables live on servers, Lowering turns that graph into a program of
// pull, run and push. It works in two phases:
//
// 1. lower_variable() looks at all uses of one variable, in the order of the nodes (VariableUses),
//    and decides how it is pulled (not at all, by rows or whole) and what is pushed. A node whose
//    only effect is a change that the servers make themselves is dropped. Its argument becomes an
//    additional output of the graph, from which the push takes its values. The worker's copy has to
//    take part in the changes only if a later node reads it, or if a push of arguments cannot
//    express them. Then the nodes stay. If all changes are additions, their arguments are pushed as
//    before; otherwise the contents of the copy, or the difference that the step made to it.
// 2. build() assembles the new graph: the nodes that are left, those that compute rows of gradients
//    in place of whole gradients (find_row_gradients), the additional outputs, and for row pulls
//    two inputs per reader in place of the variable and the ids. A second, small graph computes the
//    row ids from the step's inputs, since they are needed before the pull.
//
// Outputs are read when the run is over. If the memory of a value that is to be pushed is written
// later in the step, the graph gets a clone of it, made before the node that used it (output()).
namespace trireme::internal {
namespace {

using proto::Argument;
using proto::Node;
using proto::Value;
using Push = PsStep::Push;
using Touch = VariableUses::Touch;
using Use = VariableUses::Use;

// Derives the program of one step. Used once.
class Lowering {
 public:
  Lowering(const Plan& plan, const std::vector<bool>& on_servers, uint64_t largest_whole_gradient)
      : plan_(plan),
        def_(plan.graph->def),
        on_servers_(on_servers),
        largest_whole_gradient_(largest_whole_gradient),
        uses_(plan, on_servers),
        rows_(find_row_gradients(plan, uses_)) {}

  absl::StatusOr<PsStep> lower() {
    for (int v = 0; v < def_.variables_size(); ++v) {
      if (on_servers_[v]) TRIREME_RETURN_IF_ERROR(lower_variable(v));
    }
    TRIREME_RETURN_IF_ERROR(build());
    return std::move(program_);
  }

 private:
  // Decides what is pulled and pushed for one variable. Four facts decide: whether a node reads it
  // after a change (the copy must have the change), whether a gradient was pushed before a read (an
  // error), whether there are writes that no push expresses, and whether all reads are by rows.
  absl::Status lower_variable(uint32_t v) {
    const std::vector<Touch>& touches = uses_.touches(v);
    if (touches.empty()) return absl::OkStatus();
    const auto has = [&](Use use) { return std::ranges::count(touches, use, &Touch::use) > 0; };
    bool changed = false, gradient = false, read_after_change = false;
    for (const Touch& touch : touches) {
      const bool reads =
          touch.use == Use::kRead || touch.use == Use::kReadRows || touch.use == Use::kWrite;
      if (reads && gradient) {
        return make_status(
            ErrorCode::kFailedPrecondition,
            touch.node < def_.nodes_size()
                ? absl::StrCat("operator '", uses_.node(touch.node).op(), "' of function '",
                               def_.name(),
                               "' reads it after its optimizer was given a gradient, which the "
                               "parameter servers apply only after the step; read it before, or in "
                               "another function")
                : absl::StrCat("function '", def_.name(),
                               "' returns it after its optimizer was given a gradient, which the "
                               "parameter servers apply only after the step; read it in another "
                               "function"),
            {"", absl::StrCat("variable '", def_.variables(static_cast<int>(v)).name(), "'")});
      }
      if (reads && changed) read_after_change = true;
      if (touch.use == Use::kGradient) gradient = true;
      if (touch.use != Use::kRead && touch.use != Use::kReadRows) changed = true;
    }
    // Writes that the servers cannot make themselves, and assignments mixed with additions, are
    // pushed as the state that they left in the worker's copy.
    const bool other_writes = has(Use::kWrite) || (has(Use::kAssign) && has(Use::kAdd));
    const bool keeps_changes = read_after_change || other_writes;
    if (other_writes || (keeps_changes && has(Use::kAssign))) {
      const bool difference = has(Use::kWrite) && !has(Use::kAssign) && can_subtract(v);
      pushes_.push_back({{.variable = v,
                          .kind = difference ? Update::Kind::kAdd : Update::Kind::kAssign,
                          .value = difference ? Push::Value::kDifference : Push::Value::kContents},
                         -1});
    }
    bool reads_whole = keeps_changes || has(Use::kRead);
    if (!reads_whole) reads_whole = !lower_row_reads(v);
    if (reads_whole && (has(Use::kRead) || has(Use::kReadRows) || keeps_changes)) {
      program_.pulled.push_back(v);
    }
    for (const Touch& touch : touches) {
      switch (touch.use) {
        case Use::kAdd:
          if (other_writes) break;
          push_value(v, touch.node, Update::Kind::kAdd, uses_.scale(touch.node));
          if (!keeps_changes) dropped_.insert(touch.node);
          break;
        case Use::kAssign:
          if (keeps_changes) break;
          push_value(v, touch.node, Update::Kind::kAssign, 1);
          dropped_.insert(touch.node);
          break;
        case Use::kGradient:
          if (has(Use::kReadRows) && !has(Use::kRead) && !has(Use::kWrite)) {
            TRIREME_RETURN_IF_ERROR(check_gradient(v, touch.node));
          }
          push_gradient(v, touch.node);
          dropped_.insert(touch.node);
          break;
        default:
          break;
      }
    }
    return absl::OkStatus();
  }

  // Returns true if the difference of two values of the variable is defined: not for booleans.
  bool can_subtract(uint32_t v) const {
    return def_.variables(static_cast<int>(v)).type().dtype() !=
           static_cast<int>(c10::ScalarType::Bool);
  }

  // Pushes the argument of an addition or assignment.
  void push_value(uint32_t v, int index, Update::Kind kind, double scale) {
    pushes_.push_back({{.variable = v,
                        .kind = kind,
                        .output = output(uses_.argument(index, 1), index),
                        .scale = scale},
                       -1});
  }

  // Pushes a gradient, by rows if they are known.
  void push_gradient(uint32_t v, int index) {
    const int64_t gradient = uses_.argument(index, 1), lr = uses_.argument(index, 2);
    Push push{.variable = v, .kind = Update::Kind::kGradient, .lr_output = output(lr, index)};
    if (const auto found = rows_.pushed.find(index); found != rows_.pushed.end()) {
      push.value = Push::Value::kRows;
      for (const RowGradients::Rows& rows : found->second) {
        push.rows.push_back({.ids = output(rows.ids, index),
                             .values = output(rows.rows, index),
                             .no_row = rows.no_row});
      }
    } else {
      push.output = output(gradient, index);
    }
    pushes_.push_back({push, lr});
  }

  // Fails if a node pushes a whole gradient that is larger than the limit.
  absl::Status check_gradient(uint32_t v, int index) const {
    const auto found = rows_.obstacles.find(index);
    const int64_t gradient = uses_.argument(index, 1);
    if (found == rows_.obstacles.end() || def_.values(static_cast<int>(gradient)).type().sparse()) {
      return absl::OkStatus();
    }
    const proto::Variable& variable = def_.variables(static_cast<int>(v));
    uint64_t bytes = c10::elementSize(static_cast<c10::ScalarType>(variable.type().dtype()));
    for (int64_t size : variable.type().sizes()) bytes *= static_cast<uint64_t>(size);
    if (bytes <= largest_whole_gradient_) return absl::OkStatus();
    const int obstacle = found->second;
    const std::string why =
        obstacle < 0 ? "the gradient is not computed from these rows"
        : obstacle == def_.nodes_size()
            ? "it returns the gradient"
            : absl::StrCat(describe_node(plan_, obstacle), " needs all rows of the gradient");
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("function '", def_.name(),
                     "' reads only rows of it, but would build and push a gradient of all ",
                     variable.type().sizes(0), " rows in each step, ", bytes, " bytes: ", why,
                     ". Sums, scaling, clip_norm, clip_grad_norm(), clip_each_grad_norm() and "
                     "clip_grad_value() need only the rows that were read "
                     "(docs/parameter_servers.md); leave out other operators on the gradient, or "
                     "set the option largest_whole_gradient above ",
                     largest_whole_gradient_, " bytes"),
        {"", absl::StrCat("variable '", variable.name(), "'")});
  }

  // Makes a value an output of the graph, as it is before node `before`, and returns the number of
  // the output. A value that is not written from there on needs no copy and is shared by all
  // pushes of it.
  int output(int64_t id, int before) {
    const bool changes = id < def_.values_size() && uses_.is_written_from(id, before);
    const auto [found, added] = outputs_.try_emplace(
        {id, changes ? before : -1}, static_cast<int>(def_.outputs_size() + outputs_.size()));
    if (added) output_order_.push_back({id, changes ? before : -1});
    return found->second;
  }

  // Lets the nodes that read rows of a variable work on pulled rows. Returns false, and changes
  // nothing, if some row ids are known only after the pull.
  bool lower_row_reads(uint32_t v) {
    std::set<int> nodes;
    std::vector<int> readers;
    for (const Touch& touch : uses_.touches(v)) {
      if (touch.use != Use::kReadRows) continue;
      const int64_t ids = uses_.row_ids(touch.node);
      if (ids < 0 || !uses_.runs_before_pull(ids, nodes)) return false;
      readers.push_back(touch.node);
    }
    id_nodes_.insert(nodes.begin(), nodes.end());
    for (int reader : readers) row_readers_[reader] = v;
    return true;
  }

  // Builds the graph that a worker runs: without the dropped nodes, with the pushed values as
  // additional outputs, and with copies of those that are overwritten later.
  absl::Status build() {
    auto graph = std::make_shared<GraphData>(*plan_.graph);
    proto::GraphDef& def = graph->def;
    def.clear_nodes();
    for (const Value& value : rows_.values) *def.add_values() = value;
    std::map<int, std::vector<int64_t>> copied;  // values to copy before each node
    for (const auto& [id, before] : output_order_) {
      if (before >= 0) copied[before].push_back(id);
    }
    std::map<std::pair<int64_t, int>, int64_t> copies;
    for (int i = 0; i < def_.nodes_size(); ++i) {
      if (const auto found = copied.find(i); found != copied.end()) {
        for (int64_t id : found->second) copies[{id, i}] = add_copy(def, id);
      }
      if (dropped_.contains(i)) continue;
      if (const auto replaced = rows_.replaced.find(i); replaced != rows_.replaced.end()) {
        for (const Node& node : replaced->second) *def.add_nodes() = node;
        continue;
      }
      Node& added = *def.add_nodes();
      added = uses_.node(i);
      added.clear_differentiates();  // nodes have other numbers here
      if (const auto reader = row_readers_.find(i); reader != row_readers_.end()) {
        read_rows(def, reader->second, added);
      }
    }
    for (const auto& key : output_order_) {
      def.add_outputs(key.second < 0 ? key.first : copies[key]);
    }
    program_.results = def_.outputs_size();
    TRIREME_ASSIGN_OR_RETURN(program_.plan, compile(graph));
    TRIREME_RETURN_IF_ERROR(build_ids());
    arrange_rounds();
    return absl::OkStatus();
  }

  // Appends a node that clones a value and returns the id of the clone.
  int64_t add_copy(proto::GraphDef& def, int64_t id) {
    const int64_t copy = def.values_size();
    Value& value = *def.add_values();
    *value.mutable_type() = def.values(static_cast<int>(id)).type();
    Node& clone = *def.add_nodes();
    clone.set_op("aten::clone");
    clone.add_arguments()->set_value(static_cast<uint32_t>(id));
    clone.add_arguments()->set_none(true);
    clone.add_results()->set_value(static_cast<uint32_t>(copy));
    return copy;
  }

  // Rewires a node that reads rows: in place of the variable and the ids it gets two new inputs, a
  // table of the pulled rows, one for each id, and the places of these rows in the table. A padding
  // row has one place for all its ids, after the others, so that the operator can recognise it.
  void read_rows(proto::GraphDef& def, uint32_t v, Node& reader) {
    const int64_t ids = reader.arguments(VariableUses::row_ids_position(reader)).value();
    const proto::TensorType places = def.values(static_cast<int>(ids)).type();
    int64_t count = 1;
    for (int64_t size : places.sizes()) count *= size;
    proto::TensorType rows = def_.variables(static_cast<int>(v)).type();
    rows.set_sizes(0, count);
    const auto add_input = [&](const proto::TensorType& type) {
      const uint32_t id = def.values_size();
      Value& value = *def.add_values();
      value.set_source(Value::INPUT);
      value.set_index(def.inputs());
      *value.mutable_type() = type;
      def.set_inputs(def.inputs() + 1);
      return id;
    };
    PsStep::RowPull pull{.variable = v, .ids = static_cast<int>(ids_.size())};
    ids_.push_back(ids);
    if (const int position = VariableUses::padding_position(reader); position >= 0) {
      Argument& padding = *reader.mutable_arguments(position);
      pull.padding = padding.integer();
      if (pull.padding >= 0) {
        padding.set_integer(count);
        rows.set_sizes(0, count + 1);
      }
    }
    pull.rows_input = def.inputs();
    reader.mutable_arguments(0)->set_value(add_input(rows));
    pull.places_input = def.inputs();
    reader.mutable_arguments(VariableUses::row_ids_position(reader))->set_value(add_input(places));
    program_.row_pulls.push_back(pull);
  }

  // Builds the graph that computes the row ids before the pull.
  absl::Status build_ids() {
    if (ids_.empty()) return absl::OkStatus();
    auto graph = std::make_shared<GraphData>(*plan_.graph);
    proto::GraphDef& def = graph->def;
    def.clear_nodes();
    def.clear_outputs();
    def.set_random(false);
    for (int i : id_nodes_) {
      Node& added = *def.add_nodes();
      added = uses_.node(i);
      added.clear_differentiates();
    }
    for (int64_t id : ids_) def.add_outputs(id);
    TRIREME_ASSIGN_OR_RETURN(program_.ids, compile(graph));
    return absl::OkStatus();
  }

  // Distributes the pushes over rounds, each to the first round that can take it. Each update of a
  // variable goes into a later round than the one before it, so that they are applied in order. A
  // round has one learning rate.
  void arrange_rounds() {
    std::vector<std::pair<std::set<uint32_t>, int64_t>> rounds;  // variables, learning rate
    for (const auto& [push, lr] : pushes_) {
      // The first round after the last one that has an update of this variable.
      size_t round = 0;
      for (size_t i = 0; i < rounds.size(); ++i) {
        if (rounds[i].first.contains(push.variable)) round = i + 1;
      }
      while (round < rounds.size() && lr >= 0 && rounds[round].second >= 0 &&
             rounds[round].second != lr) {
        ++round;
      }
      if (round == rounds.size()) {
        rounds.push_back({{}, -1});
        program_.rounds.emplace_back();
      }
      rounds[round].first.insert(push.variable);
      if (lr >= 0) rounds[round].second = lr;
      program_.rounds[round].push_back(push);
    }
  }

  const Plan& plan_;
  const proto::GraphDef& def_;
  const std::vector<bool>& on_servers_;
  const uint64_t largest_whole_gradient_;
  const VariableUses uses_;
  const RowGradients rows_;

  std::set<int> dropped_;                         // nodes that the worker does not run
  std::map<int, uint32_t> row_readers_;           // nodes that read pulled rows, to the variable
  std::set<int> id_nodes_;                        // nodes that make row ids
  std::vector<int64_t> ids_;                      // values with row ids, one for each row pull
  std::vector<std::pair<Push, int64_t>> pushes_;  // each with the value of its learning rate, or -1
  // Number of each additional output. The key is a value and the node before which it is copied,
  // or -1 if it needs no copy.
  std::map<std::pair<int64_t, int>, int> outputs_;
  std::vector<std::pair<int64_t, int>> output_order_;
  PsStep program_;
};

}  // namespace

absl::StatusOr<PsStep> make_ps_step(const Plan& plan, const std::vector<bool>& on_servers,
                                    uint64_t largest_whole_gradient) {
  return Lowering(plan, on_servers, largest_whole_gradient).lower();
}

}  // namespace trireme::internal
