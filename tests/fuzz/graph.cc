// Feeds graph loading with bytes that nobody wrote on purpose: decode, check, explain. It must
// refuse or accept, never crash, hang or take memory without bound. Nothing is run: running a graph
// is the operators' business.
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
  Graph graph(*plan);
  graph.explain();
  graph.dot();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  feed(bytes);
  // The same as a bare protobuf under a proper head, so that the fuzzer need not find the length.
  std::string framed = "trgraph1";
  const uint64_t length = size;
  framed.append(reinterpret_cast<const char*>(&length), sizeof length);
  feed(framed + bytes + std::string(4, '\0'));
  return 0;
}
