#include "trireme/placement/existing_devices.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/placement/local_devices.h"

namespace trireme::internal {
namespace {

// Most missing devices that are reported, and most bytes of a name in a report. The graph may be
// that of a peer, and has not been checked yet: what is reported must not multiply its size.
constexpr size_t kMostReports = 16, kMostBytes = 200;

// Returns a text of the graph for a report: cut, and without characters that would end a line.
std::string shortened(const std::string& text) {
  std::string line = text.size() <= kMostBytes ? text : text.substr(0, kMostBytes) + "...";
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return line;
}

// Returns the scopes that named the operator's device.
std::string scopes_of(const proto::GraphDef& def, const proto::Node& node) {
  const int64_t index = static_cast<int64_t>(node.device_reason()) - 1;
  if (index < 0 || index >= def.scopes_size()) return "";
  return shortened(def.scopes(static_cast<int>(index)));
}

std::string named_by(const std::string& scopes) {
  return scopes.empty() ? "" : absl::StrCat(", named by scope ", scopes, ",");
}

// Returns the reason for the device that an operator got instead of `missing`.
std::string reason_of(const std::string& scopes, const std::string& missing) {
  return absl::StrCat(scopes, scopes.empty() ? "" : "; ", "there is no ", missing);
}

}  // namespace

absl::StatusOr<ExistingDevices> use_existing_devices(std::shared_ptr<const GraphData> graph,
                                                     const DeviceList& devices,
                                                     const std::string& inventory) {
  ExistingDevices result{.graph = std::move(graph), .missing = {}};
  const proto::GraphDef& def = result.graph->def;
  std::shared_ptr<GraphData> changed;       // a copy of the graph, once a device is missing
  std::map<std::string, uint32_t> reasons;  // 1 + index in the copy's scopes
  std::set<std::string> reported;
  for (int i = 0; i < def.nodes_size(); ++i) {
    const std::string& asked = def.nodes(i).device();
    if (asked.empty()) continue;
    TRIREME_ASSIGN_OR_RETURN(const DeviceSpec spec,
                             try_call([&] { return DeviceSpec::parse(asked); }));
    if (!spec.type || devices.has(*spec.type, spec.index.value_or(0))) continue;
    const std::string used = nearest(spec, devices).to_string();
    const std::string scopes = scopes_of(def, def.nodes(i));
    if (reported.insert(asked).second && result.missing.size() < kMostReports) {
      result.missing.push_back(absl::StrCat("device '", shortened(asked), "'", named_by(scopes),
                                            " does not exist; using '", used, "' (", inventory,
                                            ")"));
    }
    if (changed == nullptr) changed = std::make_shared<GraphData>(*result.graph);
    const auto [reason, is_new] =
        reasons.try_emplace(reason_of(scopes, shortened(asked)), changed->def.scopes_size() + 1);
    if (is_new) changed->def.add_scopes(reason->first);
    changed->def.mutable_nodes(i)->set_device(used);
    changed->def.mutable_nodes(i)->set_device_reason(reason->second);
  }
  if (changed != nullptr) result.graph = std::move(changed);
  return result;
}

absl::StatusOr<ExistingDevices> use_devices_of_program(std::shared_ptr<const GraphData> graph) {
  return use_existing_devices(std::move(graph), program_device_list(), describe_accelerators());
}

}  // namespace trireme::internal
