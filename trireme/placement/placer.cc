// Places variables first and then the nodes in captured order, so that the arguments of a node are
// placed before it.
//
// The hard constraint is memory that can change: variables, and whatever else some node writes. It
// has one home, and every write and every view of it runs there, since a copy on another task would
// miss the writes. A variable's home is its device. Other written memory gets its home when the
// first node makes it or, for a constant, uses it. Everything else can be copied between tasks, so
// the other rules decide.
//
// Splitting an operator over lists makes the new graph longer than the captured one; new_numbers_
// maps the old node numbers to the new ones.
#include "trireme/placement/placer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

using proto::Value;

struct Place {
  DeviceSpec device;   // with every field set
  std::string reason;  // why, as Graph::explain() shows it

  TaskId task() const { return {*device.job, *device.task}; }
};

class Placer {
 public:
  Placer(const Plan& plan, const PlacementOptions& options)
      : plan_(plan), def_(plan.graph->def), options_(options), out_(std::make_shared<GraphData>()) {
    locations_.resize(def_.values_size());
    out_->def = def_;
    out_->constants = plan.graph->constants;
    out_->def.clear_nodes();
    for (int i = 0; i < def_.scopes_size(); ++i) scopes_[def_.scopes(i)] = i + 1;
    new_numbers_.push_back(0);
  }

  absl::StatusOr<PlacedGraph> place() {
    collect_written_storages();
    TRIREME_RETURN_IF_ERROR(place_variables());
    for (int i = 0; i < def_.nodes_size(); ++i) {
      new_numbers_.push_back(out_->def.nodes_size() + 1);
      absl::Status status = place_node(i);
      if (!status.ok()) {
        return make_status(error_code(status),
                           absl::StrCat(describe_node(plan_, i), ": ", status.message()),
                           {"", absl::StrCat("graph '", def_.name(), "'")});
      }
    }
    result_.graph = std::move(out_);
    result_.storages = plan_.storages;
    return std::move(result_);
  }

 private:
  uint32_t storage(int64_t value) const { return plan_.storages[value]; }

  // Finds all memory that needs a home.
  void collect_written_storages() {
    for (int i = 0; i < def_.nodes_size(); ++i) {
      for (int argument : writable_arguments(plan_.nodes[i].op)) {
        for_each_value(def_.nodes(i).arguments(argument),
                       [&](int64_t value) { written_.insert(storage(value)); });
      }
    }
  }

  std::string known_tasks() const {
    std::vector<std::string> names;
    for (const auto& [task, devices] : options_.tasks) names.push_back(task.to_string());
    return absl::StrJoin(names, ", ");
  }

  // Returns the full device for `requested`, the device that the scopes name, which may have open
  // parts. `reason` names these scopes.
  absl::StatusOr<Place> resolve(const std::string& requested, const std::string& reason) {
    TRIREME_ASSIGN_OR_RETURN(const DeviceSpec spec,
                             try_call([&] { return DeviceSpec::parse(requested); }));
    const std::string named =
        absl::StrCat("device '", requested, "'", reason.empty() ? "" : ", named by scope ", reason);
    const TaskId task = task_of(spec, options_.master);
    const auto found = options_.tasks.find(task);
    if (found == options_.tasks.end()) {
      return make_status(
          ErrorCode::kInvalidArgument,
          absl::StrCat(named, ", is on ", task.to_string(),
                       ", which is not a task of this cluster; its tasks are: ", known_tasks()));
    }
    const DeviceList& devices = found->second;
    const DeviceSpec full = with_defaults(spec, options_.master, devices);
    Place place{full, reason.empty() ? std::string("no scope names a device") : reason};
    if (devices.has(*full.type, *full.index)) return place;
    const std::string existing = absl::StrJoin(devices.names(task), ", ");
    if (!options_.soft) {
      return make_status(
          ErrorCode::kInvalidArgument,
          absl::StrCat(named, ", does not exist; ", task.to_string(), " has ", existing,
                       ". Name one of these, or use soft placement, which takes the nearest"));
    }
    place.device = nearest(full, devices);
    absl::StrAppend(&place.reason, "; there is no ", full.to_string());
    if (warned_.insert(full.to_string()).second) {
      result_.missing_devices.push_back(absl::StrCat(named, ", does not exist; using '",
                                                     place.device.to_string(), "' (",
                                                     task.to_string(), " has ", existing, ")"));
    }
    return place;
  }

  std::string scope_name(uint32_t scope) const { return scope == 0 ? "" : def_.scopes(scope - 1); }

  // Returns 1 + the index of `text` in the graph's scopes, adding it if it is new. Reasons are kept
  // there too.
  uint32_t intern(const std::string& text) {
    const auto [found, added] = scopes_.try_emplace(text, scopes_.size() + 1);
    if (added) out_->def.add_scopes(text);
    return found->second;
  }

  absl::Status place_variables() {
    std::unordered_map<std::string, int> numbers;
    for (int i = 0; i < def_.variables_size(); ++i) numbers[def_.variables(i).name()] = i;
    std::vector<std::optional<Place>> places(def_.variables_size());
    // Two passes, since an optimizer's state may have a lower number than its variable.
    for (const bool states : {false, true}) {
      for (int i = 0; i < def_.variables_size(); ++i) {
        const proto::Variable& variable = def_.variables(i);
        const auto owner = numbers.find(variable.slot_of());
        const bool follows = !variable.slot_of().empty() && owner != numbers.end() &&
                             def_.variables(owner->second).slot_of().empty();
        if (follows != states) continue;
        if (follows) {
          places[i] = places[owner->second];
          places[i]->reason = absl::StrCat("state of '", variable.slot_of(), "'");
        } else {
          auto place = resolve(variable.device(), scope_name(variable.device_reason()));
          if (!place.ok()) {
            return with_origin(place.status(),
                               {"", absl::StrCat("variable '", variable.name(), "'")});
          }
          places[i] = *std::move(place);
        }
      }
    }
    for (int i = 0; i < def_.variables_size(); ++i) {
      proto::Variable* variable = out_->def.mutable_variables(i);
      variable->set_device(places[i]->device.to_string());
      variable->set_device_reason(intern(places[i]->reason));
      result_.variable_tasks.push_back(places[i]->task());
    }
    for (int i = 0; i < def_.values_size(); ++i) {
      if (def_.values(i).source() != Value::VARIABLE) continue;
      const Place& place = *places[def_.values(i).index()];
      locations_[i] = place;
      homes_[storage(i)] = {
          place.device,
          absl::StrCat("variable '", def_.variables(def_.values(i).index()).name(), "'")};
    }
    return absl::OkStatus();
  }

  absl::Status place_node(int index) {
    const proto::Node& node = def_.nodes(index);
    if (const auto groups = items_by_place(index); !groups.empty()) {
      for (const auto& [where, items] : groups) {
        proto::Node part = sliced(node, items);
        Place place{device_of_group(node, items), "with the tensors of its lists on this task"};
        emit(std::move(part), std::move(place));
      }
      return absl::OkStatus();
    }
    TRIREME_ASSIGN_OR_RETURN(Place place, choose(index));
    emit(node, std::move(place));
    return absl::OkStatus();
  }

  // Applies the rules of placer.h to a node, in their order.
  absl::StatusOr<Place> choose(int index) {
    const proto::Node& node = def_.nodes(index);
    TRIREME_ASSIGN_OR_RETURN(std::optional<Place> home, home_of_writes(index));
    if (home) return *home;
    for (const auto& result : node.results()) {
      std::optional<Place> viewed;
      for_each_value(result, [&](int64_t value) {
        const auto found = homes_.find(storage(value));
        if (found != homes_.end()) viewed = found->second;
      });
      if (viewed) {
        viewed->reason = absl::StrCat("views ", viewed->reason);
        return *viewed;
      }
    }
    if (node.differentiates() > 0 &&
        node.differentiates() < static_cast<uint32_t>(new_numbers_.size())) {
      const auto& forward = places_[new_numbers_[node.differentiates()] - 1];
      return Place{forward.device, absl::StrCat("gradient of node ", node.differentiates() - 1)};
    }
    if (node.in_backward()) {
      if (const auto* place = first_argument(node)) {
        return Place{place->device, "part of backward, with its argument"};
      }
    }
    if (node.colocated_with() > 0 &&
        node.colocated_with() <= static_cast<uint32_t>(def_.values_size())) {
      if (const auto& place = locations_[node.colocated_with() - 1]) {
        return Place{place->device, "colocated with the value that its scope names"};
      }
    }
    return resolve(node.device(), scope_name(node.device_reason()));
  }

  // Returns the place of the first argument that has one; null if there is none.
  const Place* first_argument(const proto::Node& node) const {
    const Place* first = nullptr;
    for (const auto& argument : node.arguments()) {
      for_each_value(argument, [&](int64_t value) {
        if (first == nullptr && locations_[value]) first = &*locations_[value];
      });
    }
    return first;
  }

  // Returns the home of the memory that the node writes; nullopt if it writes nothing, or only to
  // memory that has no home yet. Fails if it writes to memory on two tasks.
  absl::StatusOr<std::optional<Place>> home_of_writes(int index) {
    std::optional<Place> home;
    std::optional<std::pair<std::string, std::string>> conflict;
    for (int argument : writable_arguments(plan_.nodes[index].op)) {
      for_each_value(def_.nodes(index).arguments(argument), [&](int64_t value) {
        const auto found = homes_.find(storage(value));
        if (found == homes_.end()) return;
        if (!home) {
          home = Place{found->second.device, absl::StrCat("writes ", found->second.reason)};
        } else if (home->task() != found->second.task()) {
          conflict = {home->reason, found->second.reason};
        }
      });
    }
    if (conflict) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("it ", conflict->first, " and ", conflict->second,
                                      ", which are on different tasks. Place them on one task, or "
                                      "write to them with two operators"));
    }
    return home;
  }

  // Returns, for an operator over lists, the indices of the items on each GPU and on the CPUs of
  // each task. The number is -1 for the CPUs, which share memory, and that of the GPU otherwise.
  // Returns an empty map for any other operator, or if an item has no place.
  std::map<std::pair<TaskId, int>, std::vector<int>> items_by_place(int index) const {
    const proto::Node& node = def_.nodes(index);
    std::map<std::pair<TaskId, int>, std::vector<int>> groups;
    if (!absl::StartsWith(node.op(), "aten::_foreach_") &&
        !absl::StartsWith(node.op(), "aten::_fused_")) {
      return groups;
    }
    if (node.arguments_size() == 0 || !node.arguments(0).has_values()) return groups;
    const auto& items = node.arguments(0).values().ids();
    for (int i = 0; i < items.size(); ++i) {
      const std::optional<Place> place = items[i] < 0 ? std::nullopt : location_of_item(items[i]);
      if (!place) return {};
      const bool on_gpu = place->device.type == DeviceType::kGpu;
      groups[{place->task(), on_gpu ? *place->device.index : -1}].push_back(i);
    }
    return groups;
  }

  // Returns the home of a value's memory if it has one, otherwise where the value was made.
  std::optional<Place> location_of_item(int64_t value) const {
    const auto home = homes_.find(storage(value));
    return home == homes_.end() ? locations_[value] : std::optional<Place>(home->second);
  }

  DeviceSpec device_of_group(const proto::Node& node, const std::vector<int>& items) const {
    return location_of_item(node.arguments(0).values().ids(items.front()))->device;
  }

  // Returns a copy of the node with only these items of its lists. A list as long as the first one
  // has an entry per item and is sliced; any other argument applies to all items.
  static proto::Node sliced(const proto::Node& node, const std::vector<int>& items) {
    const int length = node.arguments(0).values().ids_size();
    proto::Node part = node;
    const auto slice = [&](proto::Argument& argument) {
      if (argument.has_values() && argument.values().ids_size() == length) {
        proto::Values kept;
        for (int i : items) kept.add_ids(argument.values().ids(i));
        *argument.mutable_values() = std::move(kept);
      } else if (argument.has_scalars() && argument.scalars().items_size() == length) {
        proto::Scalars kept;
        for (int i : items) *kept.add_items() = argument.scalars().items(i);
        *argument.mutable_scalars() = std::move(kept);
      }
    };
    for (auto& argument : *part.mutable_arguments()) slice(argument);
    for (auto& result : *part.mutable_results()) slice(result);
    return part;
  }

  // Appends a node to the new graph, and records where its results are.
  void emit(proto::Node node, Place place) {
    const int number = out_->def.nodes_size();
    node.set_device(place.device.to_string());
    node.set_device_reason(intern(place.reason));
    node.set_differentiates(
        node.differentiates() < new_numbers_.size() ? new_numbers_[node.differentiates()] : 0);
    for (const auto& result : node.results()) {
      for_each_value(result, [&](int64_t value) {
        locations_[value] = place;
        set_home_if_written(value, place, absl::StrCat("the result of node ", number));
      });
    }
    for (const auto& argument : node.arguments()) {
      // Each step has its own copy of a constant that is written. Its home is the task of the first
      // node that uses it.
      for_each_value(argument, [&](int64_t value) {
        if (def_.values(value).source() != Value::CONSTANT) return;
        if (!locations_[value]) locations_[value] = place;
        set_home_if_written(value, place, "a constant");
      });
    }
    result_.node_tasks.push_back(place.task());
    places_.push_back(std::move(place));
    *out_->def.add_nodes() = std::move(node);
  }

  // Makes `place` the home of the value's memory if some node writes to it and it has no home yet.
  void set_home_if_written(int64_t value, const Place& place, const std::string& what) {
    if (!written_.contains(storage(value))) return;
    homes_.try_emplace(storage(value), Place{place.device, what});
  }

  const Plan& plan_;
  const proto::GraphDef& def_;
  const PlacementOptions& options_;
  std::shared_ptr<GraphData> out_;
  PlacedGraph result_;
  std::set<uint32_t> written_;  // storages that some node writes
  // Homes of written storages. Here a place's reason says what the memory is: "variable 'w'".
  std::unordered_map<uint32_t, Place> homes_;
  std::vector<std::optional<Place>> locations_;  // where each value was made, once it is known
  std::vector<Place> places_;                    // place of each node of the new graph
  std::vector<uint32_t> new_numbers_;  // 1 + number of an old node to 1 + number of its new node
  std::unordered_map<std::string, uint32_t> scopes_;  // text to 1 + index in the new graph's scopes
  std::set<std::string> warned_;                      // missing devices that were reported
};

}  // namespace

absl::StatusOr<PlacedGraph> place(const Plan& plan, const PlacementOptions& options) {
  return Placer(plan, options).place();
}

}  // namespace trireme::internal
