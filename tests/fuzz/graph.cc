// Loading a graph from arbitrary bytes (decode, check, explain) accepts or rejects it, and never
// crashes, hangs or takes unbounded memory. The fuzzer does not run graphs; tests/fuzz/operators
// does.
#include <cstdint>
#include <string>

#include "trireme/base/status.h"
#include "trireme/graph/graph.h"
#include "trireme/graph/graph_file.h"

namespace {

void feed(const std::string& bytes) {
  using namespace trireme;
  const auto data = internal::decode_graph(bytes);
  if (!data.ok()) return;
  const auto plan = internal::compile(*data);
  if (!plan.ok()) {
    describe(plan.status());
    return;
  }
  const Graph graph = internal::Access<Graph>::make(*plan);
  graph.explain();
  graph.dot();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  feed(bytes);
  // Feeds the same bytes under a valid header, so that the fuzzer need not guess the length.
  std::string framed = "trgraph1";
  const uint64_t length = size;
  framed.append(reinterpret_cast<const char*>(&length), sizeof length);
  feed(framed + bytes + std::string(4, '\0'));
  return 0;
}
