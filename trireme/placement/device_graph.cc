// Copies the nodes in captured order. Arguments are looked up with value_on(), which adds a move if
// the value is on another device.
//
// Memory that some node writes has one home, on which all writes run. A moved copy of it is used
// until the next write. A mirrored variable has several homes: a node outside of replicas that
// writes to it, or views it, is repeated on each. The arguments of all repetitions are looked up
// before the first one is added, since it may write to them. Other views run where their memory is;
// a view of all of a value is made again from the moved value.
//
// A variable that replicas write to is copied for each of them when the first one uses it
// (variable_copies.h), and views of it are made again from the copy. merge() combines them when
// something outside of the replicas uses the variable, or at the end.
#include "trireme/placement/device_graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/graph_builder.h"
#include "trireme/graph/graph_header.h"
#include "trireme/placement/device_graph_builder.h"
#include "trireme/placement/hoist_moves.h"
#include "trireme/placement/local_devices.h"
#include "trireme/placement/memory_use.h"
#include "trireme/placement/move_buckets.h"
#include "trireme/placement/variable_copies.h"

namespace trireme::internal {
namespace {

using proto::Value;
using Devices = std::vector<c10::Device>;

struct DeviceLess {
  bool operator()(c10::Device a, c10::Device b) const {
    return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
  }
};

bool contains(const Devices& devices, c10::Device device) {
  return std::ranges::find(devices, device) != devices.end();
}

c10::Device device_of(const proto::Node& node, const DeviceGraphOptions& options) {
  if (!node.device().empty()) {
    const DeviceSpec spec = DeviceSpec::parse(node.device());
    if (spec.type) return hardware_of(*spec.type, spec.index.value_or(0));
  }
  if (node.replica() > 0 && node.replica() <= options.replica_devices.size()) {
    return options.replica_devices[node.replica() - 1];
  }
  return options.default_device;
}

// Replaces each number of a result by that which `number_of` returns for it.
template <typename F>
void renumber_results(proto::Node& node, const F& number_of) {
  for (auto& result : *node.mutable_results()) {
    if (result.kind_case() == proto::Argument::kValue) {
      result.set_value(number_of(result.value()));
    } else if (result.has_values()) {
      for (int64_t& value : *result.mutable_values()->mutable_ids()) {
        if (value >= 0) value = number_of(value);
      }
    }
  }
}

class DeviceAssigner {
 public:
  DeviceAssigner(const Plan& plan, const DeviceGraphOptions& options)
      : plan_(plan),
        def_(plan.graph->def),
        options_(options),
        memory_(plan, static_cast<int>(options.replica_devices.size())),
        out_(def_),
        copies_(options.replica_devices, options.variable_devices, out_),
        numbers_(def_.values_size()),
        origins_(def_.values_size(), c10::Device(c10::kCPU)),
        producers_(def_.values_size(), -1) {}

  absl::StatusOr<DeviceGraph> assign() {
    add_sources();
    for (int i = 0; i < def_.nodes_size(); ++i) {
      add_sends(i);
      new_nodes_.push_back(out_.nodes());
      absl::Status status = add_node(i);
      if (status.ok()) continue;
      return make_status(error_code(status),
                         absl::StrCat(describe_node(plan_, i), ": ", status.message()),
                         {"", absl::StrCat("graph '", def_.name(), "'")});
    }
    for (uint32_t variable : memory_.written_in_replicas()) merge(variable);
    add_sends(def_.nodes_size());
    for (int64_t output : def_.outputs()) {
      out_.def().add_outputs(output < 0 ? -1 : value_on(c10::kCPU, output, -1));
    }
    for (int i = 0; i < out_.def().receives_size(); ++i) {
      proto::Receive* receive = out_.def().mutable_receives(i);
      if (receive->generator()) receive->set_before(new_nodes_[receive->before()]);
    }
    if (def_.sends().empty() && def_.receives().empty()) hoist_moves(early_, out_.def());
    for (const proto::Node& node : out_.def().nodes()) {
      result_.node_replicas.push_back(replica_of(node));
    }
    result_.graph = out_.finish();
    return std::move(result_);
  }

 private:
  // A value of the new graph, and the number of writes to its memory before it was made.
  struct Located {
    uint32_t number;
    int writes;
  };

  uint32_t storage(int64_t value) const { return memory_.storage(value); }
  int replica_of(const proto::Node& node) const { return memory_.replica_of(node); }
  void locate(int64_t value, c10::Device device, uint32_t number) {
    numbers_[value].insert_or_assign(device, Located{number, writes_[storage(value)]});
  }

  // Adds the variables, and the values that come from outside.
  void add_sources() {
    for (int i = 0; i < def_.variables_size(); ++i) {
      const int64_t value = plan_.variable_values[i];
      std::vector<uint32_t> numbers;
      for (c10::Device device : options_.variable_devices[i]) {
        proto::Variable* variable = out_.def().add_variables();
        *variable = def_.variables(i);
        if (device != options_.variable_devices[i].front()) {
          variable->set_name(absl::StrCat(variable->name(), "/", device.str()));
        }
        result_.variables.push_back({static_cast<uint32_t>(i), device});
        if (value < 0) continue;
        numbers.push_back(out_.add_value(Value::VARIABLE, out_.def().variables_size() - 1,
                                         def_.variables(i).type()));
        locate(value, device, numbers.back());
      }
      copies_.add(std::move(numbers));
      if (value >= 0) origins_[value] = options_.variable_devices[i].front();
    }
    for (int i = 0; i < def_.values_size(); ++i) {
      const Value& value = def_.values(i);
      if (value.source() != Value::INPUT && value.source() != Value::RECEIVED) continue;
      locate(i, c10::kCPU, out_.add_value(value.source(), value.index(), value.type()));
    }
  }

  // Returns the number of a constant on a device.
  uint32_t constant_on(c10::Device device, int64_t value) {
    const proto::Constant& described = def_.constants(def_.values(value).index());
    // An operator takes a C++ number from the CPU on every device.
    if (described.wrapped_number()) device = c10::kCPU;
    if (memory_.is_written(value)) {
      device = homes_.try_emplace(storage(value), device).first->second;
    }
    const auto known = numbers_[value].find(device);
    if (known != numbers_[value].end()) return known->second.number;
    const at::Tensor& tensor = plan_.graph->constants[def_.values(value).index()];
    const uint32_t number =
        out_.add_constant(device.is_cpu() ? tensor : tensor.to(device), described);
    locate(value, device, number);
    origins_[value] = device;
    return number;
  }

  // Returns the number of a value, with its contents at this point of the order, on a device. For a
  // variable that replicas write to, that is the copy of `replica`.
  uint32_t value_on(c10::Device device, int64_t value, int replica) {
    const Value& described = def_.values(value);
    if (described.source() == Value::CONSTANT) {
      const uint32_t constant = constant_on(device, value);
      const bool anywhere = def_.constants(described.index()).wrapped_number();
      if (anywhere || origins_[value] == device) return constant;
    }
    const std::optional<uint32_t> variable = memory_.variable_of(value);
    if (replica >= 0 && variable && memory_.written_in_replicas().contains(*variable)) {
      const int producer = producers_[value];
      if (producer < 0) return copies_.of_replica(*variable, replica);
      if (replica_of(def_.nodes(producer)) != replica) return view_of_copy(device, value, replica);
    }
    const auto known = numbers_[value].find(device);
    if (known != numbers_[value].end() &&
        (is_original(value, device) || known->second.writes == writes_[storage(value)])) {
      return known->second.number;
    }
    const std::optional<int64_t> base = viewed_value(value);
    if (!base && !memory_.may_change(value)) early_.insert(out_.nodes());
    const uint32_t number =
        base ? view_again(device, value, *base, replica)
             : out_.move(numbers_[value].at(origins_[value]).number, device, replica);
    locate(value, device, number);
    return number;
  }

  // Returns true if the value on this device is one that was made there: it sees all writes. A
  // moved copy does not.
  bool is_original(int64_t value, c10::Device device) const {
    if (device == origins_[value]) return true;
    const auto repeated = repeated_.find(value);
    if (repeated != repeated_.end()) return contains(repeated->second, device);
    return def_.values(value).source() == Value::VARIABLE &&
           contains(options_.variable_devices[def_.values(value).index()], device);
  }

  // Returns the value that this value is a view of, if all of its elements are in the view and the
  // view can be made again elsewhere: its node has one tensor argument and one result, not in a
  // list. A move keeps no gaps between elements, so a view with the strides of gaps cannot.
  std::optional<int64_t> viewed_value(int64_t value) const {
    const int producer = producers_[value];
    if (producer < 0) return std::nullopt;
    const proto::Node& node = def_.nodes(producer);
    const std::optional<int64_t> base = memory_.view_base(producer);
    if (!base || node.results_size() != 1 ||
        node.results(0).kind_case() != proto::Argument::kValue || node.reshapes() ||
        !is_dense(def_.values(*base).type()) ||
        element_count(def_.values(*base).type()) != element_count(def_.values(value).type())) {
      return std::nullopt;
    }
    int tensors = 0;
    for (const auto& argument : node.arguments()) {
      for_each_value(argument, [&](int64_t) { ++tensors; });
    }
    return tensors == 1 ? base : std::nullopt;
  }

  uint32_t view_again(c10::Device device, int64_t value, int64_t base, int replica) {
    const uint32_t viewed = value_on(device, base, replica);
    proto::Node view = copy_of(producers_[value]);
    view.set_replica(static_cast<uint32_t>(replica + 1));
    for (auto& argument : *view.mutable_arguments()) {
      if (argument.kind_case() == proto::Argument::kValue) argument.set_value(viewed);
    }
    return out_.append_with_result(std::move(view), def_.values(value).type());
  }

  // Returns the number of a view of a variable, made again from the copy of a replica. The view was
  // made outside of the replicas, or in another one, since a capture has equal views once.
  uint32_t view_of_copy(c10::Device device, int64_t value, int replica) {
    const int producer = producers_[value];
    // An operator that writes returns what it has written to.
    for (int argument : memory_.written_by(producer)) {
      const proto::Argument& written = def_.nodes(producer).arguments(argument);
      if (written.kind_case() != proto::Argument::kValue) continue;
      if (storage(written.value()) == storage(value))
        return value_on(device, written.value(), replica);
    }
    proto::Node view = copy_of(producer);
    view.set_replica(static_cast<uint32_t>(replica + 1));
    for (auto& argument : *view.mutable_arguments()) {
      if (argument.kind_case() == proto::Argument::kValue)
        argument.set_value(value_on(device, argument.value(), replica));
    }
    std::map<int64_t, uint32_t> made;
    renumber_results(view, [&](int64_t old) {
      return made[old] = out_.add_value(Value::RESULT, 0, def_.values(old).type());
    });
    out_.append(std::move(view));
    return made[value];
  }

  // Returns a copy of a node, whose arguments and results still have the old numbers.
  proto::Node copy_of(int index) const {
    proto::Node node = def_.nodes(index);
    node.set_colocated_with(0);
    const uint32_t forward = node.differentiates();
    node.set_differentiates(
        forward > 0 && forward <= new_nodes_.size() ? new_nodes_[forward - 1] + 1 : 0);
    return node;
  }

  // Returns the devices on which a node runs: more than one if it changes or views a mirrored
  // variable outside of replicas.
  absl::StatusOr<Devices> devices_of(int index) {
    const proto::Node& node = def_.nodes(index);
    const int replica = replica_of(node);
    std::optional<Devices> homes;
    std::string conflict;
    const auto add_home = [&](int64_t value) {
      const std::optional<uint32_t> variable = memory_.variable_of(value);
      Devices home;
      if (variable && replica >= 0 && memory_.written_in_replicas().contains(*variable)) {
        home = {options_.replica_devices[replica]};
      } else if (variable) {
        home = options_.variable_devices[*variable];
      } else if (const auto known = homes_.find(storage(value)); known != homes_.end()) {
        home = {known->second};
      } else {
        return;
      }
      if (!homes || contains(home, homes->front())) {
        if (!homes || home.size() > homes->size()) homes = std::move(home);
      } else if (!contains(*homes, home.front())) {
        conflict = absl::StrCat("it writes to memory on ", homes->front().str(), " and on ",
                                home.front().str(),
                                "; write to them with two operators, or keep them on one device");
      }
    };
    for (int argument : memory_.written_by(index)) {
      for_each_value(node.arguments(argument), add_home);
    }
    if (!conflict.empty()) return make_status(ErrorCode::kInvalidArgument, conflict);
    const c10::Device wanted = device_of(node, options_);
    if (homes) return *homes;
    const std::optional<int64_t> base = memory_.view_base(index);
    if (!base)
      return Devices{replica < 0 && node.device().empty() ? nearest(node, wanted) : wanted};
    const std::optional<uint32_t> variable = memory_.variable_of(*base);
    if (!variable) {
      const bool constant = def_.values(*base).source() == Value::CONSTANT;
      return Devices{constant && !memory_.is_written(*base) ? wanted : origins_[*base]};
    }
    const Devices& copies = options_.variable_devices[*variable];
    if (replica < 0) return copies;
    if (memory_.written_in_replicas().contains(*variable)) {
      return Devices{options_.replica_devices[replica]};
    }
    return Devices{contains(copies, wanted) ? wanted : copies.front()};
  }

  // Returns the device of most of the node's arguments that other nodes made; `otherwise` if there
  // are none. Of several, it is the one that was chosen for the fewest elements so far. So the sums
  // of the replicas' gradients are spread over their devices.
  c10::Device nearest(const proto::Node& node, c10::Device otherwise) {
    std::map<c10::Device, int64_t, DeviceLess> elements;
    for (const auto& argument : node.arguments()) {
      for_each_value(argument, [&](int64_t value) {
        // Views of inputs stay on the CPU, and must not keep the step there.
        if (producers_[value] < 0 || (origins_[value].is_cpu() && !otherwise.is_cpu())) return;
        elements[origins_[value]] += element_count(def_.values(value).type());
      });
    }
    if (elements.empty()) return otherwise;
    const auto best = std::ranges::max_element(elements, {}, [&](const auto& entry) {
      return std::pair(entry.second, -chosen_[entry.first]);
    });
    if (elements.size() > 1) chosen_[best->first] += best->second;
    return best->first;
  }

  absl::Status add_node(int index) {
    const proto::Node& node = def_.nodes(index);
    const int replica = replica_of(node);
    if (replica < 0) merge_touched(node);
    TRIREME_ASSIGN_OR_RETURN(Devices devices, devices_of(index));
    // An operator that draws must not run twice, so the other copies follow the first one.
    const bool draws_once = plan_.nodes[index].random && devices.size() > 1;
    if (draws_once) devices.resize(1, c10::Device(c10::kCPU));
    std::vector<proto::Node> repetitions;
    for (c10::Device device : devices) repetitions.push_back(on_device(index, device));
    const auto add_result = [&](int64_t value, c10::Device device) {
      const uint32_t number = out_.add_value(Value::RESULT, 0, def_.values(value).type());
      if (device == devices.front()) origins_[value] = device;
      if (devices.size() > 1) repeated_[value] = devices;
      producers_[value] = index;
      if (memory_.is_written(value)) homes_.try_emplace(storage(value), device);
      locate(value, device, number);
      return number;
    };
    for (size_t i = 0; i < devices.size(); ++i) {
      renumber_results(repetitions[i],
                       [&](int64_t value) { return add_result(value, devices[i]); });
      out_.append(std::move(repetitions[i]));
    }
    for (int argument : memory_.written_by(index)) {
      for_each_value(node.arguments(argument), [&](int64_t value) {
        ++writes_[storage(value)];
        const std::optional<uint32_t> variable = memory_.variable_of(value);
        if (draws_once && variable) copies_.follow_first(*variable);
      });
    }
    return absl::OkStatus();
  }

  // Returns a copy of a node with its arguments on a device.
  proto::Node on_device(int index, c10::Device device) {
    const int replica = replica_of(def_.nodes(index));
    proto::Node node = copy_of(index);
    bool takes_tensors = false;
    for (auto& argument : *node.mutable_arguments()) {
      if (argument.kind_case() == proto::Argument::kValue) {
        argument.set_value(value_on(device, argument.value(), replica));
        takes_tensors = true;
      } else if (argument.has_values()) {
        if (!device.is_cpu()) move_together(argument.values(), device, replica);
        for (int64_t& value : *argument.mutable_values()->mutable_ids()) {
          if (value >= 0) value = value_on(device, value, replica);
        }
        takes_tensors = true;
      }
    }
    if (device.is_cpu()) return node;
    // Tensors that the program made on the CPU are made on the device.
    const auto& schema = plan_.nodes[index].op.schema().arguments();
    for (int i = 0; i < node.arguments_size(); ++i) {
      proto::Argument* argument = node.mutable_arguments(i);
      const bool on_cpu = argument->kind_case() == proto::Argument::kDevice
                              ? c10::Device(argument->device()).is_cpu()
                              : !takes_tensors && schema[i].name() == "device";
      if (on_cpu) argument->set_device(device.str());
    }
    return node;
  }

  // Moves those values of a list that are on another accelerator, in a few large moves.
  void move_together(const proto::Values& values, c10::Device device, int replica) {
    std::map<c10::Device, std::vector<int64_t>, DeviceLess> elsewhere;
    for (int64_t value : std::set<int64_t>(values.ids().begin(), values.ids().end())) {
      if (value < 0 || producers_[value] < 0 || memory_.may_change(value)) continue;
      if (origins_[value].is_cpu() || numbers_[value].contains(device)) continue;
      elsewhere[origins_[value]].push_back(value);
    }
    for (const auto& [from, moving] : elsewhere) {
      for (const auto& bucket : move_buckets(def_, moving)) move_bucket(bucket, device, replica);
    }
  }

  void move_bucket(const std::vector<int64_t>& bucket, c10::Device device, int replica) {
    std::vector<uint32_t> here;
    for (int64_t value : bucket) here.push_back(numbers_[value].at(origins_[value]).number);
    const uint32_t first = out_.nodes();
    const uint32_t moved = out_.move(out_.pack(here, replica), device, replica);
    for (uint32_t node = first; node < out_.nodes(); ++node) early_.insert(node);
    const std::vector<uint32_t> there = out_.unpack(moved, here, replica);
    for (size_t i = 0; i < bucket.size(); ++i) locate(bucket[i], device, there[i]);
  }

  void merge_touched(const proto::Node& node) {
    if (!copies_.has_unmerged()) return;
    for (const auto& argument : node.arguments()) {
      for_each_value(argument, [&](int64_t value) {
        const std::optional<uint32_t> variable = memory_.variable_of(value);
        if (variable) merge(*variable);
      });
    }
  }

  // Merges the replicas' copies of a variable, if there are any.
  void merge(uint32_t variable) {
    if (copies_.merge(variable)) ++writes_[storage(plan_.variable_values[variable])];
  }

  // Adds the sends that are due once `nodes` nodes of the old graph have run.
  void add_sends(int nodes) {
    for (const SendPlan& send : plan_.sends) {
      if (static_cast<int>(send.after) != nodes) continue;
      proto::Send added = def_.sends(static_cast<int>(send.index));
      if (added.value() >= 0) added.set_value(value_on(c10::kCPU, added.value(), -1));
      added.set_after(static_cast<uint32_t>(out_.nodes()));
      *out_.def().add_sends() = std::move(added);
    }
  }

  const Plan& plan_;
  const proto::GraphDef& def_;
  const DeviceGraphOptions& options_;
  const MemoryUse memory_;
  DeviceGraphBuilder out_;
  VariableCopies copies_;
  DeviceGraph result_;
  std::vector<std::map<c10::Device, Located, DeviceLess>> numbers_;  // of old values, by device
  std::vector<c10::Device> origins_;       // device on which each old value was made
  std::map<int64_t, Devices> repeated_;    // old values that were made on several devices
  std::vector<int> producers_;             // the node that makes each old value; -1 for none
  std::map<uint32_t, c10::Device> homes_;  // device of each storage that is_written(), once known
  std::map<uint32_t, int> writes_;         // number of writes to each storage so far
  std::vector<uint32_t> new_nodes_;        // first new node of each old node
  std::map<c10::Device, int64_t, DeviceLess> chosen_;  // elements that nearest() sent to each
  std::set<uint32_t> early_;  // moves whose value never changes, so that they may come earlier
};

}  // namespace

bool needs_no_devices(const Plan& plan, const DeviceGraphOptions& options) {
  if (!options.default_device.is_cpu()) return false;
  for (const Devices& devices : options.variable_devices) {
    if (devices.size() > 1 || !devices.front().is_cpu()) return false;
  }
  return std::ranges::all_of(plan.graph->def.nodes(), [&](const proto::Node& node) {
    return (options.replica_devices.empty() || node.replica() == 0) &&
           device_of(node, options).is_cpu();
  });
}

absl::StatusOr<DeviceGraph> assign_devices(const Plan& plan, const DeviceGraphOptions& options) {
  // Names of devices in a graph from another process may not be valid. That throws.
  TRIREME_ASSIGN_OR_RETURN(auto assigned,
                           try_call([&] { return DeviceAssigner(plan, options).assign(); }));
  return assigned;
}

}  // namespace trireme::internal
