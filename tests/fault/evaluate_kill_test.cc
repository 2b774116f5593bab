// Worker processes are killed at random moments of an evaluation, and restarted. Every example
// counts once. TRIREME_KILLS sets the number of kills, TRIREME_SEED their order and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/distribute/strategy.h"
#include "trireme/metric/metric.h"
#include "trireme/metric/metric_rule.h"
#include "trireme/model/model.h"
#include "trireme/testing/process_cluster.h"
#include "trireme/testing/setting.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using torch::Tensor;

constexpr int64_t kEvaluatedExamples = 6005;  // The last batch has 5.
constexpr int kEvaluatingWorkers = 3;
const int64_t kEvaluateKills = setting("TRIREME_KILLS", 2);
const int64_t kEvaluateSeed = setting("TRIREME_SEED", 5);

// Counts how often each example was evaluated. Its targets are the numbers of the examples.
class CountEachExample final : public internal::MetricRule {
 public:
  // The figure is the number of examples whose count is between `least` and `most`.
  CountEachExample(std::string name, double least, double most)
      : name_(std::move(name)), least_(least), most_(most) {}

  const std::string& name() const override { return name_; }
  int64_t sums() const override { return kEvaluatedExamples; }
  Tensor sums_of(const Tensor& targets, const Tensor&, const Tensor&) const override {
    return torch::zeros({sums()}, torch::kDouble)
        .index_add(0, targets, torch::ones({targets.numel()}, torch::kDouble));
  }
  double result(const Tensor& sums) const override {
    return ((sums >= least_) * (sums <= most_)).sum().item<double>();
  }

 private:
  const std::string name_;
  const double least_, most_;
};

struct ExamplesCounted : Metric {
  ExamplesCounted(const std::string& name, double least, double most)
      : Metric(std::make_shared<CountEachExample>(name, least, most)) {}
};

// A net that keeps a worker busy for some milliseconds.
struct BusyNetImpl : torch::nn::Module {
  BusyNetImpl() : weight(register_parameter("weight", torch::ones({1}))) {}
  Tensor forward(const Tensor& x) {
    const Tensor work = torch::ones({400, 400}) * x.mean();
    return x * weight + 0 * work.matmul(work).sum();
  }

  Tensor weight;
};
TORCH_MODULE(BusyNet);

class EvaluateKills : public testing::Test {
 protected:
  milliseconds up_to(milliseconds most) { return milliseconds(random_() % most.count()); }

  std::mt19937 random_{static_cast<uint32_t>(kEvaluateSeed)};
  ProcessCluster cluster_{{{.workers = kEvaluatingWorkers, .ps = 1}}};
  const Strategy strategy_ = ParameterServerStrategy(Cluster(cluster_.spec()));
};

TEST_F(EvaluateKills, EveryExampleCountsOnce) {
  SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kEvaluateSeed));
  Model model(BusyNet(), strategy_);
  model.compile(
      {.loss = [](const Tensor& output,
                  const Tensor& target) { return output * 0 + target.to(torch::kDouble); },
       .metrics = {ExamplesCounted("lost", 0, 0), ExamplesCounted("once", 1, 1),
                   ExamplesCounted("repeated", 2, 1e9)},
       .steps_per_execution = 3});
  const Tensor numbers = torch::arange(kEvaluatedExamples);
  const auto evaluate = [&] {
    return model.evaluate(numbers.to(torch::kFloat) / kEvaluatedExamples, numbers,
                          {.batch_size = 10, .verbose = Verbose::kSilent});
  };
  const auto expect_once = [&](const Logs& logs) {
    EXPECT_EQ(logs["lost"], 0);
    EXPECT_EQ(logs["once"], kEvaluatedExamples);
    EXPECT_EQ(logs["repeated"], 0);
    EXPECT_NEAR(logs["loss"], (kEvaluatedExamples - 1) / 2.0, 1e-9);
  };
  expect_once(evaluate());  // It captures the step, so the next one tells how long it takes.
  const Time began = Clock::real().now();
  expect_once(evaluate());
  const auto lasts = std::chrono::ceil<milliseconds>(Clock::real().now() - began);

  for (int64_t kills = 0, evaluations = 0; kills < kEvaluateKills; ++evaluations) {
    ASSERT_LT(evaluations, 10 * kEvaluateKills)
        << "evaluations end before their workers are killed";
    auto evaluation = std::async(std::launch::async, evaluate);
    while (kills < kEvaluateKills &&
           evaluation.wait_for(up_to(lasts)) == std::future_status::timeout) {
      const TaskId victim{"worker", static_cast<int>(random_() % kEvaluatingWorkers)};
      cluster_.kill(victim);
      if (evaluation.wait_for(milliseconds(0)) == std::future_status::timeout) ++kills;
      cluster_.restart(victim);
    }
    if (evaluation.wait_for(std::chrono::minutes(2)) == std::future_status::timeout) {
      ADD_FAILURE() << "the evaluation does not end";
      cluster_.kill({"ps", 0});  // Ends it with an error.
    }
    expect_once(evaluation.get());
  }
}

}  // namespace
}  // namespace trireme
