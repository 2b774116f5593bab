#include "trireme/ps/step_program.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/exec/random.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

using proto::Node;
using proto::Value;
using Push = StepProgram::Push;

// What a node does with a variable.
enum class Use {
  kRead,
  kReadRows,
  kAdd,       // of another tensor, without looking at the contents
  kAssign,    // likewise
  kGradient,  // given to its optimizer
  kWrite,     // in any other way
};

struct Touch {
  int node;
  Use use;
};

bool same_type(const proto::TensorType& a, const proto::TensorType& b) {
  return a.dtype() == b.dtype() && std::ranges::equal(a.sizes(), b.sizes());
}

class Lowering {
 public:
  Lowering(const Plan& plan, const std::vector<bool>& on_servers)
      : plan_(plan), def_(plan.graph->def), on_servers_(on_servers) {}

  absl::StatusOr<StepProgram> lower() {
    find_uses();
    for (size_t v = 0; v < touches_.size(); ++v) {
      if (on_servers_[v]) TRIREME_RETURN_IF_ERROR(lower_variable(v));
    }
    TRIREME_RETURN_IF_ERROR(build());
    return std::move(program_);
  }

 private:
  const Value& value(int64_t id) const { return def_.values(static_cast<int>(id)); }
  const Node& node(int index) const { return def_.nodes(index); }
  bool is_op(int index, const char* name) const { return node(index).op() == name; }

  // The value, if the argument is one.
  int64_t argument(int index, int position) const {
    const auto& argument = node(index).arguments(position);
    return argument.has_value() ? static_cast<int64_t>(argument.value()) : -1;
  }

  bool is_variable(int64_t id, uint32_t variable) const {
    return id >= 0 && value(id).source() == Value::VARIABLE && value(id).index() == variable;
  }

  void find_uses() {
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
      // An output is read when all else is done.
      if (variable >= 0) touches_[variable].push_back({def_.nodes_size(), Use::kRead});
    }
  }

  Use use(int index, uint32_t variable, bool writes) const {
    const bool first = is_variable(argument(index, 0), variable);
    if (!writes) return first && row_ids(index) >= 0 ? Use::kReadRows : Use::kRead;
    if (!first) return Use::kWrite;
    if (is_op(index, "trireme::push_gradient")) return Use::kGradient;
    const int64_t other = node(index).arguments_size() > 1 ? argument(index, 1) : -1;
    if (other < 0 || plan_.storages[other] == plan_.storages[argument(index, 0)]) {
      return Use::kWrite;
    }
    if (!same_type(value(other).type(), def_.variables(static_cast<int>(variable)).type()) ||
        value(other).type().sparse()) {
      return Use::kWrite;
    }
    if (is_op(index, "aten::add_.Tensor") || is_op(index, "aten::sub_.Tensor")) return Use::kAdd;
    return is_op(index, "aten::copy_") ? Use::kAssign : Use::kWrite;
  }

  // The row ids of a node that reads rows of its first argument; -1 for another node.
  int64_t row_ids(int index) const {
    if (is_op(index, "aten::embedding") || is_op(index, "aten::_embedding_bag") ||
        is_op(index, "aten::_embedding_bag_forward_only")) {
      return argument(index, 1);
    }
    if (is_op(index, "aten::index_select") && node(index).arguments(1).integer() == 0) {
      return argument(index, 2);
    }
    return -1;
  }

  static int ids_position(const Node& node) { return node.op() == "aten::index_select" ? 2 : 1; }

  // Collects the nodes that make a value, if they can as well run before the pull: they depend on
  // no variable of the servers, write nothing and draw no random number.
  bool runs_before_pull(int64_t id, std::set<int>& nodes) const {
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
    if (!nodes.insert(maker).second) return true;
    bool all = true;
    for (const auto& used : node(maker).arguments()) {
      for_each_value(used, [&](int64_t id) { all = all && runs_before_pull(id, nodes); });
    }
    return all;
  }

  absl::Status lower_variable(uint32_t v) {
    const std::vector<Touch>& touches = touches_[v];
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
                ? absl::StrCat("operator '", node(touch.node).op(),
                               "' reads it after its optimizer was given a gradient, which the "
                               "parameter servers apply only after the step; read it before, or in "
                               "another function")
                : "it is returned after its optimizer was given a gradient, which the parameter "
                  "servers apply only after the step; read it in another function",
            {"", absl::StrCat("variable '", def_.variables(static_cast<int>(v)).name(), "'")});
      }
      if (reads && changed) read_after_change = true;
      if (touch.use == Use::kGradient) gradient = true;
      if (touch.use != Use::kRead && touch.use != Use::kReadRows) changed = true;
    }
    // What the worker's copy has to go through as well, for those that look at it later.
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
          push_value(v, touch.node, Update::Kind::kAdd, scale(touch.node));
          if (!keeps_changes) dropped_.insert(touch.node);
          break;
        case Use::kAssign:
          if (keeps_changes) break;
          push_value(v, touch.node, Update::Kind::kAssign, 1);
          dropped_.insert(touch.node);
          break;
        case Use::kGradient:
          push_gradient(v, touch.node, reads_whole);
          dropped_.insert(touch.node);
          break;
        default:
          break;
      }
    }
    return absl::OkStatus();
  }

  bool can_subtract(uint32_t v) const {
    return def_.variables(static_cast<int>(v)).type().dtype() !=
           static_cast<int>(c10::ScalarType::Bool);
  }

  double scale(int index) const {
    const auto& alpha = node(index).arguments(2);
    const double number = alpha.kind_case() == proto::Argument::kInteger
                              ? static_cast<double>(alpha.integer())
                              : alpha.number();
    return is_op(index, "aten::sub_.Tensor") ? -number : number;
  }

  void push_value(uint32_t v, int index, Update::Kind kind, double scale) {
    pushes_.push_back(
        {{.variable = v, .kind = kind, .output = output(argument(index, 1), index), .scale = scale},
         -1});
  }

  void push_gradient(uint32_t v, int index, bool reads_whole) {
    const int64_t gradient = argument(index, 1), lr = argument(index, 2);
    Push push{.variable = v, .kind = Update::Kind::kGradient, .lr_output = output(lr, index)};
    std::vector<int> makers;
    if (!reads_whole && is_sum_of_rows(gradient, v, makers)) {
      push.value = Push::Value::kRows;
      for (int maker : makers) {
        dropped_.insert(maker);
        if (is_op(maker, "aten::add.Tensor")) continue;
        push.rows.push_back({.ids = output(argument(maker, 1), maker),
                             .values = output(argument(maker, 0), maker),
                             .no_row = node(maker).arguments(3).integer()});
      }
    } else {
      push.output = output(gradient, index);
    }
    pushes_.push_back({push, lr});
  }

  // Collects the nodes that make a gradient, if it is an embedding's or a sum of such, and if
  // nothing else looks at it on the way.
  bool is_sum_of_rows(int64_t gradient, uint32_t v, std::vector<int>& makers) const {
    std::vector<int64_t> terms = {gradient};
    while (!terms.empty()) {
      const int64_t term = terms.back();
      terms.pop_back();
      const int maker = term < 0 ? -1 : makers_[term];
      if (maker < 0 || users_[term].size() != 1 || writers_.contains(plan_.storages[term]) ||
          std::ranges::count(def_.outputs(), term) != 0 ||
          !same_type(value(term).type(), def_.variables(static_cast<int>(v)).type())) {
        return false;
      }
      makers.push_back(maker);
      if (is_op(maker, "aten::add.Tensor") && scale(maker) == 1) {
        terms.push_back(argument(maker, 1));
        terms.push_back(argument(maker, 0));
      } else if (!is_op(maker, "aten::embedding_dense_backward") ||
                 node(maker).arguments(4).boolean()) {
        return false;
      }
    }
    return true;
  }

  // Makes a value, as it is before a node, an output; its number.
  int output(int64_t id, int before) {
    const auto writers = writers_.find(plan_.storages[id]);
    const bool changes = writers != writers_.end() && writers->second.back() >= before;
    const auto [found, added] = outputs_.try_emplace(
        {id, changes ? before : -1}, static_cast<int>(def_.outputs_size() + outputs_.size()));
    if (added) output_order_.push_back({id, changes ? before : -1});
    return found->second;
  }

  // False if some ids are known only after the pull.
  bool lower_row_reads(uint32_t v) {
    std::set<int> nodes;
    std::vector<int> readers;
    for (const Touch& touch : touches_[v]) {
      if (touch.use != Use::kReadRows) continue;
      const int64_t ids = row_ids(touch.node);
      if (ids < 0 || !runs_before_pull(ids, nodes)) return false;
      readers.push_back(touch.node);
    }
    id_nodes_.insert(nodes.begin(), nodes.end());
    for (int reader : readers) row_readers_[reader] = v;
    return true;
  }

  // The graph without what was dropped, with the outputs that are pushed.
  absl::Status build() {
    auto graph = std::make_shared<GraphData>(*plan_.graph);
    proto::GraphDef& def = graph->def;
    def.clear_nodes();
    std::map<int, std::vector<int64_t>> copied;  // before each node
    for (const auto& [id, before] : output_order_) {
      if (before >= 0) copied[before].push_back(id);
    }
    std::map<std::pair<int64_t, int>, int64_t> copies;
    for (int i = 0; i < def_.nodes_size(); ++i) {
      if (const auto found = copied.find(i); found != copied.end()) {
        for (int64_t id : found->second) copies[{id, i}] = add_copy(def, id);
      }
      if (dropped_.contains(i)) continue;
      Node& added = *def.add_nodes();
      added = node(i);
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

  // Lets a node read rows that were pulled, each at its own place.
  void read_rows(proto::GraphDef& def, uint32_t v, Node& reader) {
    const int64_t ids = reader.arguments(ids_position(reader)).value();
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
    StepProgram::RowPull pull{.variable = v, .ids = static_cast<int>(ids_.size())};
    ids_.push_back(ids);
    pull.rows_input = def.inputs();
    reader.mutable_arguments(0)->set_value(add_input(rows));
    pull.places_input = def.inputs();
    reader.mutable_arguments(ids_position(reader))->set_value(add_input(places));
    program_.row_pulls.push_back(pull);
  }

  absl::Status build_ids() {
    if (ids_.empty()) return absl::OkStatus();
    auto graph = std::make_shared<GraphData>(*plan_.graph);
    proto::GraphDef& def = graph->def;
    def.clear_nodes();
    def.clear_outputs();
    def.set_random(false);
    for (int i : id_nodes_) {
      Node& added = *def.add_nodes();
      added = node(i);
      added.clear_differentiates();
    }
    for (int64_t id : ids_) def.add_outputs(id);
    TRIREME_ASSIGN_OR_RETURN(program_.ids, compile(graph));
    return absl::OkStatus();
  }

  void arrange_rounds() {
    std::vector<std::pair<std::set<uint32_t>, int64_t>> rounds;  // variables, learning rate
    for (const auto& [push, lr] : pushes_) {
      // In order: a later push of a variable is not to overtake an earlier one.
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

  std::vector<std::vector<Touch>> touches_;  // of each variable on servers, in order
  std::vector<int> makers_;                  // of each value
  std::vector<std::vector<int>> users_;
  std::map<uint32_t, std::vector<int>> writers_;  // of each storage that is written, in order

  std::set<int> dropped_;                         // nodes
  std::map<int, uint32_t> row_readers_;           // nodes, with the variable
  std::set<int> id_nodes_;                        // that make row ids
  std::vector<int64_t> ids_;                      // values, one for each row pull
  std::vector<std::pair<Push, int64_t>> pushes_;  // with the value of the learning rate
  // Values that become outputs, as they are before a node (-1: they do not change), to their
  // number.
  std::map<std::pair<int64_t, int>, int> outputs_;
  std::vector<std::pair<int64_t, int>> output_order_;
  StepProgram program_;
};

}  // namespace

absl::StatusOr<StepProgram> make_step_program(const Plan& plan,
                                              const std::vector<bool>& on_servers) {
  return Lowering(plan, on_servers).lower();
}

StepProgramRun::StepProgramRun(std::shared_ptr<const StepProgram> program,
                               std::vector<std::optional<PsVariable>> variables,
                               std::vector<at::Tensor> own, std::vector<at::Tensor> inputs,
                               uint64_t seed, uint64_t step)
    : program_(std::move(program)),
      variables_(std::move(variables)),
      contents_(std::move(own)),
      inputs_(std::move(inputs)),
      seed_(seed),
      step_(step) {
  contents_.resize(variables_.size());
  before_.resize(variables_.size());
}

absl::StatusOr<std::vector<PsClient::Pull>> StepProgramRun::pulls() {
  std::vector<PsClient::Pull> pulls;
  for (uint32_t variable : program_->pulled) pulls.push_back({*variables_[variable]});
  if (program_->ids == nullptr) return pulls;
  TRIREME_ASSIGN_OR_RETURN(row_ids_, replay(*program_->ids, inputs_, contents_, {}));
  for (const StepProgram::RowPull& pull : program_->row_pulls) {
    pulls.push_back({*variables_[pull.variable], row_ids_[pull.ids]});
  }
  return pulls;
}

absl::Status StepProgramRun::run(std::vector<at::Tensor> pulled, const ReplayOptions& options) {
  const size_t whole = program_->pulled.size();
  if (pulled.size() != whole + program_->row_pulls.size()) {
    return make_status(ErrorCode::kInternal, "the pull brought another number of tensors");
  }
  for (size_t i = 0; i < whole; ++i) contents_[program_->pulled[i]] = std::move(pulled[i]);
  for (const auto& round : program_->rounds) {
    for (const Push& push : round) {
      if (push.value != Push::Value::kDifference) continue;
      before_[push.variable] = contents_[push.variable].clone();
    }
  }
  inputs_.resize(inputs_.size() + 2 * program_->row_pulls.size());
  for (size_t i = 0; i < program_->row_pulls.size(); ++i) {
    const StepProgram::RowPull& pull = program_->row_pulls[i];
    const at::Tensor& ids = row_ids_[pull.ids];
    inputs_[pull.rows_input] = std::move(pulled[whole + i]);
    inputs_[pull.places_input] = at::arange(ids.numel(), ids.options()).reshape(ids.sizes());
  }
  at::Generator generator;
  if (program_->plan->graph->def.random()) generator = make_step_generator(seed_, step_);
  ReplayOptions tuned = options;
  tuned.tuner = program_->tuner.get();
  TRIREME_ASSIGN_OR_RETURN(
      outputs_, replay(*program_->plan, inputs_, contents_, std::move(generator), tuned));
  return absl::OkStatus();
}

std::vector<PsClient::Push> StepProgramRun::pushes(size_t round) const {
  std::vector<PsClient::Push> pushes;
  for (const Push& push : program_->rounds[round]) {
    PsClient::Push& made =
        pushes.emplace_back(PsClient::Push{*variables_[push.variable], push.kind, {}, {}});
    switch (push.value) {
      case Push::Value::kOutput:
        made.values = outputs_[push.output];
        break;
      case Push::Value::kRows:
        gather_rows(push.rows, made);
        break;
      case Push::Value::kContents:
        made.values = contents_[push.variable];
        break;
      case Push::Value::kDifference:
        made.values = at::sub(contents_[push.variable], before_[push.variable]);
        break;
    }
    if (push.scale != 1) {
      made.values = c10::isIntegralType(made.values.scalar_type(), /*includeBool=*/false)
                        ? at::mul(made.values, static_cast<int64_t>(push.scale))
                        : at::mul(made.values, push.scale);
    }
  }
  return pushes;
}

void StepProgramRun::gather_rows(const std::vector<Push::Rows>& parts, PsClient::Push& made) const {
  const auto& sizes = made.variable.layout().sizes;
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  std::vector<at::Tensor> ids, values;
  for (const Push::Rows& part : parts) {
    ids.push_back(outputs_[part.ids].reshape({-1}));
    shape[0] = ids.back().numel();
    values.push_back(outputs_[part.values].reshape(shape));
    if (part.no_row < 0) continue;
    const at::Tensor kept = ids.back().ne(part.no_row).nonzero().select(1, 0);
    ids.back() = ids.back().index_select(0, kept);
    values.back() = values.back().index_select(0, kept);
  }
  made.rows = parts.size() == 1 ? ids[0] : at::cat(ids);
  made.values = parts.size() == 1 ? values[0] : at::cat(values);
}

std::optional<double> StepProgramRun::lr(size_t round) const {
  for (const Push& push : program_->rounds[round]) {
    if (push.lr_output >= 0) return outputs_[push.lr_output].item<double>();
  }
  return std::nullopt;
}

std::vector<at::Tensor> StepProgramRun::results() const {
  return {outputs_.begin(), outputs_.begin() + static_cast<int64_t>(program_->results)};
}

}  // namespace trireme::internal
