// Any text in TF_CONFIG gives an Error, or a cluster that is the same after a round trip.
#include <string>

#include "trireme/cluster/resolver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const trireme::TfConfigResolver resolver(
        [&](const std::string& name) -> std::optional<std::string> {
          if (name == "TF_CONFIG") return text;
          return std::nullopt;
        });
    const trireme::Cluster cluster = resolver.cluster();
    if (!cluster.spec.empty() &&
        trireme::ClusterSpec::from_json(cluster.spec.to_json()) != cluster.spec) {
      __builtin_trap();
    }
  } catch (const trireme::Error&) {
  }
  return 0;
}
