#include "trireme/metric/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/trireme.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;

// Examples with the figures that scikit-learn computed for them: testdata/write_with_sklearn.py.
struct Figures {
  nlohmann::json json = nlohmann::json::parse(std::ifstream(METRIC_FIGURES));

  Tensor tensor(const std::string& name) const {
    const nlohmann::json& values = json["batch"][name];
    if (values[0].is_number_integer()) return torch::tensor(values.get<std::vector<int64_t>>());
    if (values[0].is_number()) {
      return torch::tensor(values.get<std::vector<double>>(), torch::kDouble);
    }
    std::vector<Tensor> rows;
    for (const auto& row : values) {
      rows.push_back(torch::tensor(row.get<std::vector<double>>(), torch::kDouble));
    }
    return torch::stack(rows);
  }
};

struct Case {
  std::string figure;
  Metric recipe;
  std::string targets, outputs;
};

std::vector<Case> all_cases() {
  return {
      {"accuracy", Accuracy(), "classes", "scores"},
      {"top_1_accuracy", TopKAccuracy({.k = 1}), "classes", "scores"},
      {"top_3_accuracy", TopKAccuracy({.k = 3}), "classes", "scores"},
      {"binary_accuracy", Accuracy(), "truth", "probabilities"},
      {"precision", Precision(), "truth", "probabilities"},
      {"recall", Recall(), "truth", "probabilities"},
      {"precision_at_0.8", Precision({.threshold = 0.8}), "truth", "probabilities"},
      {"recall_at_0.8", Recall({.threshold = 0.8}), "truth", "probabilities"},
      {"auc", Auc(), "truth", "probabilities"},
      {"mean_absolute_error", MeanAbsoluteError(), "values", "predictions"},
      {"mean_squared_error",
       Mean("mean_squared_error",
            [](const Tensor& targets, const Tensor& outputs) {
              return (targets - outputs).square().mean(1);
            }),
       "values", "predictions"},
  };
}

using Update = std::function<void(const Metric& metric, const Tensor& targets,
                                  const Tensor& outputs, const Tensor& weights)>;

void update_eagerly(const Metric& metric, const Tensor& targets, const Tensor& outputs,
                    const Tensor& weights) {
  metric.update(targets, outputs, weights);
}

// Expects scikit-learn's figures of all metrics, with and without weights, if the examples come in
// batches of this size.
void expect_figures(int64_t batch, const Update& update) {
  const Figures figures;
  for (const bool weighted : {false, true}) {
    const Tensor weights = weighted ? figures.tensor("weights") : Tensor();
    for (const Case& one : all_cases()) {
      SCOPED_TRACE(one.figure + (weighted ? " with weights" : ""));
      const Metric metric = one.recipe.bind();
      const auto targets = figures.tensor(one.targets).split(batch);
      const auto outputs = figures.tensor(one.outputs).split(batch);
      for (size_t i = 0; i < targets.size(); ++i) {
        update(metric, targets[i], outputs[i], weighted ? weights.split(batch)[i] : Tensor());
      }
      const char* kind = weighted ? "weighted_figures" : "figures";
      EXPECT_NEAR(metric.result(), figures.json[kind][one.figure].get<double>(), 1e-12);
    }
  }
}

TEST(Metric, HasTheFiguresOfScikitLearnInOneBatch) {
  expect_figures(103, update_eagerly);
}

TEST(Metric, HasTheFiguresOfScikitLearnInSeveralBatches) {
  expect_figures(25, update_eagerly);
  expect_figures(1, update_eagerly);
}

TEST(Metric, HasTheFiguresOfScikitLearnInACapturedFunction) {
  expect_figures(25, [](const Metric& metric, const Tensor& targets, const Tensor& outputs,
                        const Tensor& weights) {
    if (weights.defined()) {
      function("weighted", [&](const Tensor& t, const Tensor& o, const Tensor& w) {
        metric.update(t, o, w);
      })(targets, outputs, weights);
    } else {
      function("plain", [&](const Tensor& t, const Tensor& o) { metric.update(t, o); })(targets,
                                                                                        outputs);
    }
  });
}

TEST(Metric, AddsTheSumsOfAllStepsOfACapturedFunction) {
  const Metric accuracy = Accuracy().bind();
  const auto step = function(
      "step", [&](const Tensor& y, const Tensor& scores) { accuracy.update(y, scores > 0); });
  const Tensor y = torch::tensor({1, 0, 1, 1});
  for (int i = 0; i < 3; ++i) step(y, torch::tensor({1.0, -1.0, 1.0, -1.0}));
  EXPECT_EQ(step.captures(), 1);
  EXPECT_EQ(accuracy.result(), 0.75);
  step(y, torch::tensor({-1.0, 1.0, -1.0, -1.0}));
  EXPECT_EQ(accuracy.result(), 9.0 / 16);
  accuracy.reset();
  EXPECT_TRUE(std::isnan(accuracy.result()));
}

TEST(Metric, IsFedByAllWorkersIfItsSumsAreOnParameterServers) {
  InProcessTestCluster cluster({.workers = 2, .ps = 2});
  ParameterServerStrategy strategy(Cluster(cluster.spec()), {.replicas = 2});
  const Figures figures;
  const Tensor classes = figures.tensor("classes").narrow(0, 0, 100);
  const Tensor scores = figures.tensor("scores").narrow(0, 0, 100);
  Metric here = Accuracy().bind();
  here.update(classes, scores);

  const Accuracy accuracy(strategy);
  ClusterCoordinator coordinator(strategy);
  const auto step = function("step", [&](const Tensor& y, const Tensor& x) {
    const int64_t half = y.size(0) / 2;
    strategy.run(
        [&](const Tensor& all_y, const Tensor& all_x) {
          const int64_t first = replica_id() * half;
          accuracy.update(all_y.narrow(0, first, half), all_x.narrow(0, first, half));
        },
        y, x);
  });
  for (int64_t i = 0; i < 100; i += 10) {
    coordinator.schedule(step, classes.narrow(0, i, 10), scores.narrow(0, i, 10));
  }
  coordinator.join();
  EXPECT_EQ(accuracy.result(), here.result());
  accuracy.reset();
  EXPECT_TRUE(std::isnan(accuracy.result()));
}

TEST(Metric, CopiesShareTheirSumsAndBindMakesNewOnes) {
  const Metric one = Accuracy().bind();
  const Metric copy = one, other = one.bind();
  one.update(torch::tensor({1, 1}), torch::tensor({1, 0}));
  EXPECT_EQ(copy.result(), 0.5);
  EXPECT_TRUE(std::isnan(other.result()));
}

double result_of(const Metric& recipe, const Tensor& targets, const Tensor& outputs,
                 const Tensor& weights = {}) {
  const Metric metric = recipe.bind();
  metric.update(targets, outputs, weights);
  return metric.result();
}

TEST(Accuracy, TakesScoresOfClassesNumbersAndAnswers) {
  const Tensor scores = torch::tensor({{0.1, 0.9}, {0.8, 0.2}, {0.3, 0.7}, {0.6, 0.4}});
  const Tensor classes = torch::tensor({1, 0, 0, 0});
  EXPECT_EQ(result_of(Accuracy(), classes, scores), 0.75);
  EXPECT_EQ(result_of(Accuracy(), classes.unsqueeze(1), scores), 0.75);
  EXPECT_EQ(result_of(Accuracy(), classes.to(torch::kFloat), scores), 0.75);
  EXPECT_EQ(result_of(Accuracy(), classes, scores.argmax(1)), 0.75);
  // Scores for each pixel: classes are in axis 1, as in LibTorch's losses.
  EXPECT_EQ(result_of(Accuracy(), torch::tensor({{1, 0}, {0, 1}}),
                      torch::tensor({{{0.0, 1.0}, {1.0, 0.0}}, {{1.0, 1.0}, {0.0, 0.0}}})),
            0.75);

  const Tensor logits = torch::tensor({2.0, -3.0, 0.3, -1.0});
  EXPECT_EQ(result_of(Accuracy({.threshold = 0}), classes, logits), 0.75);
  EXPECT_EQ(result_of(Accuracy(), classes, logits), 1.0);
  EXPECT_EQ(result_of(Accuracy({.threshold = 0}), classes, logits.unsqueeze(1)), 0.75);
  EXPECT_EQ(result_of(Accuracy(), classes.unsqueeze(1), logits > 0), 0.75);
  // Targets of -1 and 1 are false and true.
  EXPECT_EQ(result_of(Accuracy({.threshold = 0}), classes * 2 - 1, logits), 0.75);
}

TEST(Accuracy, CountsAnEmptyBatchAsNoExamples) {
  const Metric accuracy = Accuracy().bind();
  accuracy.update(torch::zeros({0}, torch::kLong), torch::zeros({0, 3}));
  EXPECT_TRUE(std::isnan(accuracy.result()));
  accuracy.update(torch::tensor({2}), torch::tensor({{0.1, 0.2, 0.7}}));
  accuracy.update(torch::zeros({0}, torch::kLong), torch::zeros({0, 3}));
  EXPECT_EQ(accuracy.result(), 1.0);
  EXPECT_TRUE(std::isnan(result_of(Auc(), torch::zeros({0}), torch::zeros({0}))));
}

TEST(Auc, HasTheFiguresOfKerasDocumentation) {
  const Auc recipe({.thresholds = 3});
  const Tensor targets = torch::tensor({0, 0, 1, 1}), outputs = torch::tensor({0.0, 0.5, 0.3, 0.9});
  EXPECT_DOUBLE_EQ(result_of(recipe, targets, outputs), 0.75);
  EXPECT_DOUBLE_EQ(result_of(recipe, targets, outputs, torch::tensor({1, 0, 0, 1})), 1.0);
}

TEST(Auc, TakesLogits) {
  const Tensor targets = torch::tensor({0, 1, 0, 1}),
               logits = torch::tensor({-4.0, -1.0, 1.0, 5.0});
  EXPECT_DOUBLE_EQ(result_of(Auc({.from_logits = true}), targets, logits), 0.75);
  EXPECT_DOUBLE_EQ(result_of(Auc(), targets, logits.sigmoid()), 0.75);
}

TEST(Metric, IsDefinedIfNothingIsPositive) {
  const Tensor none = torch::zeros({4});
  EXPECT_EQ(result_of(Precision(), torch::ones({4}), none), 0);
  EXPECT_EQ(result_of(Recall(), none, torch::ones({4})), 0);
  EXPECT_TRUE(std::isnan(result_of(Auc(), none, torch::rand({4}))));
}

TEST(Mean, TakesAMeanOfTheBatchOrOneNumberForEachExample) {
  const auto mean = [](const Tensor& targets, const Tensor&) { return targets.mean(); };
  const Metric means = Mean("of", mean).bind();
  means.update(torch::ones({3}), {});
  means.update(torch::zeros({1}), {});
  means.update(torch::zeros({0}), {});
  EXPECT_EQ(means.result(), 0.75);
  EXPECT_EQ(result_of(Mean("of", [](const Tensor& x, const Tensor&) { return x; }),
                      torch::tensor({1.0, 5.0}), {}, torch::tensor({3, 1})),
            2.0);
}

TEST(Mean, ComputesNoGradients) {
  const Tensor x = torch::ones({2}, torch::requires_grad());
  const Metric mean = Mean("of", [](const Tensor& t, const Tensor&) { return t * 2; }).bind();
  mean.update(x, {});
  EXPECT_EQ(mean.result(), 2.0);
}

TEST(MetricErrors, NameTheMetricTheShapesAndTheRemedy) {
  const Tensor eight = torch::ones({8});
  EXPECT_EQ(error_text([&] {
              result_of(Accuracy(), eight, torch::ones({4, 3}));
            }),
            "metric 'accuracy': outputs of shape [4, 3] do not belong to targets of shape [8]: it "
            "needs one output for each target, in the same shape, or targets [examples] with "
            "outputs [examples, classes], where further axes follow in both. Check the last layer "
            "of the net, and give the axes this order with transpose() or reshape()");
  EXPECT_EQ(error_text([&] {
              result_of(Precision(), eight, torch::ones({8, 2}));
            }),
            "metric 'precision': outputs of shape [8, 2] do not belong to targets of shape [8]: it "
            "needs one output for each target, in the same shape. Check the last layer of the net, "
            "and give the axes this order with transpose() or reshape()");
  EXPECT_THAT(error_text([&] { result_of(TopKAccuracy(), eight, eight); }),
              HasSubstr("metric 'top_5_accuracy': outputs of shape [8] do not belong"));
  EXPECT_EQ(error_text([&] {
              result_of(TopKAccuracy(), eight, torch::ones({8, 3}));
            }),
            "metric 'top_5_accuracy': outputs of shape [8, 3] have 3 classes, fewer than the 5 "
            "answers that count; make it with a smaller k");
  EXPECT_EQ(error_text([&] { result_of(Recall(), eight, eight, torch::ones({4})); }),
            "metric 'recall': weights of shape [4] do not belong to a batch of 8 examples: it "
            "needs one number for each example. Give it weights of shape [8]");
  EXPECT_THAT(error_text([&] { result_of(Auc(), eight.sum(), eight.sum()); }),
              HasSubstr("the first axis of both counts examples"));
  EXPECT_THAT(error_text([&] { result_of(Auc(), eight, {}); }),
              HasSubstr("metric 'auc': the outputs are an undefined tensor"));
}

TEST(MetricErrors, NameTheValuesOfAMean) {
  const Tensor eight = torch::ones({8, 2});
  const Mean all("distance", [](const Tensor& t, const Tensor& o) { return t - o; });
  EXPECT_EQ(error_text([&] { result_of(all, eight, eight); }),
            "metric 'distance': its function returned values of shape [8, 2] for a batch of 8 "
            "examples: it must return one number for each example, of shape [8], or their mean. "
            "Take the mean over the other axes");
  const Mean mean("distance", [](const Tensor& t, const Tensor& o) { return (t - o).mean(); });
  EXPECT_EQ(error_text([&] { result_of(mean, eight, eight, torch::ones({8})); }),
            "metric 'distance': its function returned values of shape [] for a batch of 8 examples "
            "that have weights, which a mean cannot take into account: it must return one number "
            "for each example, of shape [8]");
}

TEST(MetricErrors, RejectRecipesAndWrongOptions) {
  const Tensor one = torch::ones({1});
  const std::string recipe =
      "metric 'accuracy': cannot update(): it is a recipe, made without a strategy. Make it with a "
      "strategy, or use the metric that its bind() returns";
  EXPECT_EQ(error_text([&] { Accuracy().update(one, one); }), recipe);
  EXPECT_THAT(error_text([] { Accuracy().result(); }), HasSubstr("cannot result()"));
  EXPECT_THAT(error_text([] { Accuracy().reset(); }), HasSubstr("cannot reset()"));
  EXPECT_THAT(error_text([] { TopKAccuracy({.k = 0}); }), HasSubstr("k is 0"));
  EXPECT_THAT(error_text([] { Auc({.thresholds = 2}); }), HasSubstr("thresholds is 2"));
  EXPECT_THAT(error_text([] { Mean("", nullptr); }), HasSubstr("needs a name"));
  EXPECT_THAT(error_text([] { Mean("of", nullptr); }), HasSubstr("needs a function"));
}

TEST(MetricErrors, RejectBindAndResultInACapturedFunction) {
  const Metric metric = Accuracy().bind();
  const Tensor one = torch::ones({1});
  const auto result = function("step", [&](const Tensor& x) { return x * metric.result(); });
  EXPECT_THAT(error_text([&] { result(one); }),
              HasSubstr("cannot result() in the captured function 'step'"));
  const auto bind = function("step", [&](const Tensor& x) {
    metric.bind().update(x, x);
    return x;
  });
  EXPECT_THAT(error_text([&] { bind(one); }),
              HasSubstr("cannot bind() in the captured function 'step'"));
}

}  // namespace
}  // namespace trireme
