// Feeds graph loading with bytes that nobody wrote on purpose: decode, check, explain. It must
// refuse or accept, never crash, hang or take memory without bound. Nothing is run: running a graph
// is the operators' business.
//
// With clang this is a libFuzzer target. Elsewhere it has a main of its own that takes seeds,
// spoils them for some seconds and feeds them: graph_fuzz SECONDS [FILE...].
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

#ifndef TRIREME_LIBFUZZER
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  std::vector<std::string> seeds;
  for (int i = 2; i < argc; ++i) {
    auto bytes = trireme::internal::read_file(argv[i]);
    if (bytes.ok()) seeds.push_back(*bytes);
  }
  if (seeds.empty()) seeds.push_back(std::string("trgraph1") + std::string(12, '\0'));
  std::mt19937_64 random(1);
  const auto start = std::chrono::steady_clock::now();
  size_t runs = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
         seconds) {
    std::string bytes = seeds[random() % seeds.size()];
    for (uint64_t spoils = 1 + random() % 8; spoils > 0 && !bytes.empty(); --spoils) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 32));
      }
    }
    feed(bytes);
    if (bytes.size() > 16) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()) + 16,
                             bytes.size() - 16);
    }
    ++runs;
  }
  std::printf("%zu runs, no finding\n", runs);
  return 0;
}
#endif
