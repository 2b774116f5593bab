// The trace of a step that several workers make together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"
#include "trireme/testing/worker_threads.h"

namespace trireme {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using torch::Tensor;

// Gradients of two dtypes, which are in a bucket each, and a sparse one.
json trace_of_a_step(const Cluster& me, CommunicationImplementation implementation) {
  const MultiWorkerMirroredStrategy strategy(
      me, {.implementation = implementation, .lease = seconds(5), .connect_timeout = seconds(60)});
  const auto scope = strategy.scope();
  const Variable floats("floats", torch::ones({100}));
  const Variable doubles("doubles", torch::ones({100}, torch::kDouble));
  const Variable rows("rows", torch::ones({5, 2}));
  Sgd optimizer(std::vector<Variable>{floats, doubles, rows}, {.lr = 0.1});
  const auto step = function("train_step", [&](const Tensor& ids) {
    strategy.run([&] {
      const Tensor looked_up = torch::embedding(rows.read(), ids, -1, false, /*sparse=*/true);
      optimizer.minimize(floats.read().square().sum() + doubles.read().square().sum() +
                         looked_up.square().sum());
    });
  });
  const std::string path =
      testing::TempDir() + "/trace_of_worker_" + std::to_string(me.task->index) + ".json";
  step.run({.trace_file = path}, torch::arange(2));
  return json::parse(std::ifstream(path));
}

class MultiWorkerTraceTest : public testing::TestWithParam<CommunicationImplementation> {};

INSTANTIATE_TEST_SUITE_P(Implementations, MultiWorkerTraceTest,
                         testing::Values(CommunicationImplementation::kRing,
                                         CommunicationImplementation::kShm));

TEST_P(MultiWorkerTraceTest, HasEachBucketAndTheShareOfCommunicationThatIsHidden) {
  const std::string engine = GetParam() == CommunicationImplementation::kRing ? "ring" : "shm";
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    std::map<std::string, json> calls, waits;  // by name
    std::map<std::string, int> operators;      // number of runs of each
    json figure;
    const json trace = trace_of_a_step(me, GetParam());
    for (const json& event : trace["traceEvents"]) {
      const std::string name = event["name"];
      if (name == "hidden_communication") figure = event["args"];
      if (event["ph"] != "X") continue;
      if (event["tid"] == 2) calls[name] = event;
      if (event["tid"] == 1) ++operators[name];
      if (name.starts_with("wait for ")) waits[name] = event;
    }
    EXPECT_EQ(operators["trireme::start_sum"], 2);
    EXPECT_EQ(operators["trireme::finish_sum"], 2);
    EXPECT_EQ(operators["trireme::sum_sparse"], 1);

    std::multiset<int64_t> bucket_bytes;
    double exposed = 0, total = 0;
    int64_t bytes = 0;
    for (const auto& [name, call] : calls) {
      const auto size = call["args"]["bytes"].get<int64_t>();
      EXPECT_THAT(name, HasSubstr("train_step: "));
      EXPECT_EQ(call["args"]["engine"], engine) << name;
      EXPECT_TRUE(waits.contains("wait for " + name)) << name;
      if (name.starts_with("train_step: bucket")) bucket_bytes.insert(size);
      bytes += size;
      const double begin = call["ts"], end = begin + call["dur"].get<double>();
      total += end - begin;
      for (const auto& [_, wait] : waits) {
        const double from = wait["ts"], until = from + wait["dur"].get<double>();
        exposed += std::max(0.0, std::min(end, until) - std::max(begin, from));
      }
    }
    EXPECT_EQ(bucket_bytes, (std::multiset<int64_t>{400, 800}));
    EXPECT_EQ(figure["calls"], calls.size());
    EXPECT_EQ(figure["bytes"], bytes);
    EXPECT_NEAR(figure["communication_us"].get<double>(), total, 0.1);
    EXPECT_NEAR(figure["exposed_us"].get<double>(), exposed, 0.1);
    EXPECT_GT(total, 0);
    EXPECT_THAT(figure["share"].get<double>(), AllOf(Ge(0), Le(1)));
    EXPECT_NEAR(figure["share"].get<double>(), 1 - exposed / total, 1e-3);
  }),
              Each(""));
}

}  // namespace
}  // namespace trireme
