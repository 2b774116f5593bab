#include "trireme/graph/describe_node.h"

#include "absl/strings/str_cat.h"

namespace trireme::internal {

std::string describe_node(const Plan& plan, size_t node) {
  const proto::GraphDef& def = plan.graph->def;
  const proto::Node& described = def.nodes(static_cast<int>(node));
  std::string text = absl::StrCat("operator '", described.op(), "' (node ", node);
  if (described.module() > 0) {
    absl::StrAppend(&text, ", module '", def.scopes(described.module() - 1), "'");
  }
  if (described.scope() > 0) {
    absl::StrAppend(&text, ", scope '", def.scopes(described.scope() - 1), "'");
  }
  return text + ")";
}

}  // namespace trireme::internal
