#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/cluster/address.h"
#include "trireme/cluster/resolver.h"
#include "trireme/cluster/text.h"

// Derives the address of every rank from torchrun's variables. MASTER_PORT belongs to the store of
// the launcher, so the ranks of a node listen on the ports after it. Ranks are numbered node after
// node, with LOCAL_WORLD_SIZE ranks on each.
namespace trireme {
namespace {

using internal::refuse;
using internal::required;
using internal::required_int;

struct Nodes {
  std::string source;              // name and value of the variable, for errors
  std::vector<std::string> hosts;  // hosts in the order of the ranks
};

Nodes find_nodes(const Environment& environment, int nodes) {
  const std::string master = required(environment, "MASTER_ADDR", "it is the host of rank 0");
  const std::optional<std::string> list = internal::lookup(environment, "TRIREME_NODES");
  if (!list) {
    if (nodes == 1) return {absl::StrCat("MASTER_ADDR='", master, "'"), {master}};
    refuse(
        absl::StrCat("TRIREME_NODES is not set, and WORLD_SIZE over LOCAL_WORLD_SIZE makes ", nodes,
                     " nodes, of which MASTER_ADDR='", master,
                     "' names one; set TRIREME_NODES=host0,host1,... in the order of the ranks"));
  }
  const std::string source = absl::StrCat("TRIREME_NODES='", *list, "'");
  const std::vector<std::string> hosts = absl::StrSplit(*list, ',');
  if (static_cast<int>(hosts.size()) != nodes) {
    refuse(absl::StrCat(source, " names ", internal::count(static_cast<int>(hosts.size()), "host"),
                        ", and WORLD_SIZE over LOCAL_WORLD_SIZE makes ",
                        internal::count(nodes, "node")));
  }
  return {source, hosts};
}

Cluster read(const Environment& environment) {
  const int world =
      required_int(environment, "WORLD_SIZE", 1, internal::kMaxTasks, "it counts the ranks");
  const int rank =
      required_int(environment, "RANK", 0, world - 1, "it numbers this process among WORLD_SIZE");
  const int local = required_int(environment, "LOCAL_WORLD_SIZE", 1, world,
                                 "it counts the ranks on one node, as torchrun does");
  if (world % local != 0) {
    refuse(absl::StrCat("WORLD_SIZE=", world, " is not a multiple of LOCAL_WORLD_SIZE=", local,
                        "; every node must run the same number of ranks"));
  }
  // MASTER_PORT itself belongs to the launcher's store.
  const int port = required_int(environment, "MASTER_PORT", 1, internal::kMaxPort - local,
                                "the ranks of a node listen on the ports after it");

  const Nodes nodes = find_nodes(environment, world / local);
  std::vector<std::string> workers;
  for (int r = 0; r < world; ++r) {
    workers.push_back(internal::Address{nodes.hosts[r / local], port + 1 + r % local}.to_string());
  }
  return internal::in_context(nodes.source, [&] {
    return Cluster(ClusterSpec{{"worker", workers}}, TaskId{"worker", rank});
  });
}

}  // namespace

TorchrunResolver::TorchrunResolver(const Environment& environment)
    : SimpleResolver(internal::in_context("torchrun", [&] { return read(environment); })) {}

}  // namespace trireme
