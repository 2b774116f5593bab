// Models under the default strategy, under parameter servers with one worker, and on two logical
// CPUs, which give the same results: every test that has no order of workers in it runs with all.
#include "trireme/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "trireme/exec/random.h"
#include "trireme/model/terminate_on_nan.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

class ModelTest : public testing::TestWithParam<const char*> {
 protected:
  ModelTest() {
    if (on_servers()) cluster_.emplace(TestClusterOptions{.workers = 1, .ps = 2});
    strategy_ = make_strategy(cluster_ ? Cluster(cluster_->spec()) : Cluster(), GetParam(),
                              {.mirrored = {.devices = {"/cpu:0", "/cpu:1"}},
                               .central_storage = {.compute_devices = {"/cpu:0", "/cpu:1"}}});
    torch::manual_seed(1);
  }

  static bool on_servers() { return std::string(GetParam()) == "ps"; }
  // Returns the values of a model's parameters as an ordinary module.
  nn::Linear pulled(const Model<nn::Linear>& model) const {
    nn::Linear local(model.net()->options);
    strategy_.pull(model.net(), local);
    return local;
  }

  std::optional<InProcessTestCluster> cluster_;
  Strategy strategy_;
};

INSTANTIATE_TEST_SUITE_P(Strategies, ModelTest,
                         testing::Values("default", "ps", "mirrored", "central_storage"),
                         [](const auto& info) { return std::string(info.param); });

// Returns a copy of a net with memory of its own.
nn::Linear copy_of(const nn::Linear& net) {
  nn::Linear copy(net->options);
  const torch::NoGradGuard no_gradients;
  copy->weight.copy_(net->weight);
  copy->bias.copy_(net->bias);
  return copy;
}

FitOptions silent(FitOptions options) {
  options.verbose = Verbose::kSilent;
  return options;
}

const EvaluateOptions kSilent{.verbose = Verbose::kSilent};

TEST_P(ModelTest, GivesTheWeightsOfALoopByHand) {
  const int64_t examples = 25;  // The last batch is smaller.
  const Tensor x = torch::randn({examples, 3}), y = torch::randn({examples, 2});
  nn::Linear net(3, 2);
  nn::Linear expected = copy_of(net);
  Model model(net, strategy_);
  model.compile({.optimizer = Adam({.lr = 0.05}), .loss = nn::MSELoss(), .steps_per_execution = 2});
  const History history =
      model.fit(x, y, silent({.batch_size = 10, .epochs = 3, .shuffle = false}));

  torch::optim::Adam optimizer(expected->parameters(), torch::optim::AdamOptions(0.05));
  std::vector<double> losses;
  for (int epoch = 0; epoch < 3; ++epoch) {
    double sum = 0;
    for (int64_t row = 0; row < examples; row += 10) {
      const int64_t rows = std::min<int64_t>(10, examples - row);
      optimizer.zero_grad();
      const Tensor loss = torch::mse_loss(expected(x.narrow(0, row, rows)), y.narrow(0, row, rows));
      loss.backward();
      optimizer.step();
      sum += loss.item<double>() * static_cast<double>(rows);
    }
    losses.push_back(sum / static_cast<double>(examples));
  }
  const nn::Linear trained = pulled(model);
  EXPECT_TRUE(torch::allclose(trained->weight, expected->weight, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(trained->bias, expected->bias, 1e-5, 1e-6));
  ASSERT_EQ(history["loss"].size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(history["loss"][i], losses[i], 1e-5);
  EXPECT_THAT(history.epochs(), ElementsAre(0, 1, 2));
}

TEST_P(ModelTest, UsesTheStrategyWhoseScopeIsOpen) {
  const auto scope = strategy_.scope();
  Model model(nn::Linear(3, 2));
  EXPECT_EQ(model.strategy().name(), GetParam());
  EXPECT_EQ(model.strategy().num_replicas_in_sync(), strategy_.num_replicas_in_sync());
  model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
  const Tensor x = torch::randn({20, 3}), y = torch::randn({20, 2});
  const History history = model.fit(x, y, silent({.batch_size = 10, .epochs = 2}));
  EXPECT_LT(history["loss"].back(), history["loss"].front());
  EXPECT_NO_THROW(Model(nn::Linear(3, 2), strategy_)) << "it is the strategy of the scope";
  if (strategy_.name() == "default") return;
  EXPECT_THAT(error_of([&] { Model(nn::Linear(3, 2), Strategy()); }).message(),
              HasSubstr("'default' in the scope of another one, '" + strategy_.name() + "'"));
}

TEST(ModelOfAnEvaluator, DoesNotTrain) {
  const Cluster evaluator({}, TaskId{"evaluator", 0});
  Model model(nn::Linear(3, 2), make_strategy(evaluator));
  model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
  const Tensor x = torch::randn({20, 3}), y = torch::randn({20, 2});
  EXPECT_GT(model.evaluate(x, y, kSilent)["loss"], 0);
  EXPECT_THAT(error_of([&] { model.fit(x, y, silent({})); }).message(),
              HasSubstr("this process is the evaluator of the cluster, which does not train"));
}

TEST_P(ModelTest, CountsStepsWhoseLossIsNotANumber) {
  const Tensor x = torch::randn({20, 3}), y = torch::randn({20, 2});
  x[13][1] = std::numeric_limits<float>::infinity();
  Model model(nn::Linear(3, 2), strategy_);
  model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
  const History history =
      model.fit(Dataset::from_tensors({x, y}).repeat().batch(5),
                silent({.epochs = 3, .steps_per_epoch = 4, .callbacks = {TerminateOnNan()}}));
  EXPECT_THAT(history.epochs(), ElementsAre(0));
  EXPECT_FALSE(std::isfinite(history["loss"][0]));
}

// A rate of 0 leaves the weights alone, so the figures of an epoch can be computed at once.
TEST_P(ModelTest, FiguresOfAnEpochAreThoseOfAllItsExamples) {
  const Tensor x = torch::randn({70, 4}), y = torch::randint(3, {70});
  nn::Linear net(4, 3);
  const Tensor logits = copy_of(net)(x).detach();
  Model model(net, strategy_);
  model.compile({.optimizer = Sgd({.lr = 0}),
                 .loss = nn::CrossEntropyLoss(),
                 .metrics = {Accuracy(), TopKAccuracy({.k = 2})},
                 .steps_per_execution = 2});
  const History history =
      model.fit(x, y, silent({.batch_size = 16, .epochs = 2, .validation_split = 0.3}));
  const auto check = [&](int64_t from, int64_t to, const std::string& prefix) {
    const Tensor part = logits.slice(0, from, to), targets = y.slice(0, from, to);
    const double loss = torch::cross_entropy_loss(part, targets).item<double>();
    const double accuracy = (part.argmax(1) == targets).to(torch::kDouble).mean().item<double>();
    const Tensor two = std::get<1>(part.topk(2, 1));
    const double top2 =
        (two == targets.unsqueeze(1)).any(1).to(torch::kDouble).mean().item<double>();
    EXPECT_THAT(history[prefix + "loss"], testing::Each(DoubleNear(loss, 1e-5)));
    EXPECT_THAT(history[prefix + "accuracy"], testing::Each(DoubleNear(accuracy, 1e-9)));
    EXPECT_THAT(history[prefix + "top_2_accuracy"], testing::Each(DoubleNear(top2, 1e-9)));
    EXPECT_EQ(history[prefix + "loss"].size(), 2);
  };
  check(0, 49, "");
  check(49, 70, "val_");
}

TEST_P(ModelTest, EvaluatesEachExampleOnce) {
  const Tensor x = torch::randn({50, 3}), y = torch::randn({50, 1});
  nn::Linear net(3, 1);
  const Tensor outputs = copy_of(net)(x).detach();
  Model model(net, strategy_);
  model.compile({.loss = nn::MSELoss(), .metrics = {MeanAbsoluteError()}});
  const Logs logs = model.evaluate(x, y, {.batch_size = 16, .verbose = Verbose::kSilent});
  EXPECT_NEAR(logs["loss"], torch::mse_loss(outputs, y).item<double>(), 1e-5);
  EXPECT_NEAR(logs["mean_absolute_error"], (outputs - y).abs().mean().item<double>(), 1e-5);
  const Dataset data = Dataset::from_tensors({x, y}).batch(16);
  EXPECT_NEAR(model.evaluate(data, kSilent)["loss"], logs["loss"], 1e-9);
  EXPECT_NEAR(model.evaluate(data, {.steps = 2, .verbose = Verbose::kSilent})["loss"],
              torch::mse_loss(outputs.slice(0, 0, 32), y.slice(0, 0, 32)).item<double>(), 1e-5);
}

TEST_P(ModelTest, WeightsOfExamplesScaleTheirLosses) {
  const Tensor x = torch::randn({6, 2}), y = torch::tensor({0, 1, 2, 1, 0, 5});
  const Tensor weights = torch::tensor({1.0, 2.0, 0.0, 3.0, 1.0, 0.5});
  nn::Linear net(2, 6);
  nn::Linear expected = copy_of(net);
  Model model(net, strategy_);
  model.compile({.optimizer = Sgd({.lr = 0.5}), .loss = nn::CrossEntropyLoss()});
  // Class 5 has the weight 4; class 7 does not occur.
  const History history = model.fit(
      x, y, silent({.batch_size = 6, .class_weight = {{5, 4}, {7, 2}}, .sample_weight = weights}));
  const Tensor all = weights * torch::tensor({1.0, 1.0, 1.0, 1.0, 1.0, 4.0});
  const Tensor losses = torch::nn::functional::cross_entropy(
      expected(x), y, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  const Tensor loss = (losses * all.to(torch::kFloat)).sum() / 6;
  loss.backward();
  EXPECT_NEAR(history["loss"][0], loss.item<double>(), 1e-5);
  EXPECT_TRUE(torch::allclose(pulled(model)->weight,
                              expected->weight - 0.5 * expected->weight.grad(), 1e-5, 1e-6));
  const Logs logs =
      model.evaluate(x, y, {.sample_weight = torch::zeros({6}), .verbose = Verbose::kSilent});
  EXPECT_EQ(logs["loss"], 0);
}

TEST_P(ModelTest, PredictsRowsInTheirOrder) {
  const Tensor x = torch::randn({23, 3});
  nn::Linear net(3, 2);
  const Tensor expected = copy_of(net)(x).detach();
  Model model(net, strategy_);
  EXPECT_TRUE(torch::allclose(model.predict(x, 10), expected, 1e-5, 1e-6));
  const Dataset data = Dataset::from_tensors({x, torch::arange(23)}).batch(5);
  const Tensor outputs = model.predict(data);
  EXPECT_TRUE(torch::allclose(outputs, expected, 1e-5, 1e-6));
  EXPECT_FALSE(outputs.requires_grad());
}

TEST_P(ModelTest, SavesAndLoadsWeights) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/net.safetensors";
  const Tensor x = torch::randn({4, 3});
  Model model(nn::Linear(3, 2), strategy_);
  model.save(path);
  const Tensor before = model.predict(x);
  Model other(nn::Linear(3, 2), strategy_);
  EXPECT_FALSE(torch::equal(other.predict(x), before));
  EXPECT_TRUE(other.load(path).empty());
  EXPECT_TRUE(torch::equal(other.predict(x), before));
}

TEST_P(ModelTest, AnEpochOfCountedStepsContinuesInTheData) {
  const Dataset data =
      Dataset::from_tensors({torch::arange(8, torch::kFloat).reshape({8, 1}), torch::zeros({8, 1})})
          .repeat()
          .batch(2);
  Model model(nn::Linear(1, 1), strategy_);
  std::vector<int64_t> steps;
  model.compile({.loss = [](const Tensor& output, const Tensor&) { return (output * 0).mean(); },
                 .metrics = {Mean("inputs", [](const Tensor&, const Tensor& x) { return x * 0; })},
                 .steps_per_execution = 2});
  const auto count = on_batch_end([&](Fit& fit, const Logs&) { steps.push_back(fit.step()); });
  model.fit(data, silent({.epochs = 2, .steps_per_epoch = 3, .callbacks = {count}}));
  EXPECT_EQ(steps.size(), 4);  // executions of 2 and 1 steps
  EXPECT_EQ(steps.back(), 6);
}

TEST_P(ModelTest, FollowsTheScheduleOfItsOptimizer) {
  Model model(nn::Linear(1, 1), strategy_);
  model.compile({.optimizer = Sgd({.lr = [](int64_t step) { return 0.5 / (step + 1); }}),
                 .loss = nn::MSELoss()});
  const Tensor x = torch::ones({8, 1});
  std::vector<double> rates;
  const auto watch = on_epoch_end([&](Fit& fit, const Logs&) {
    rates.push_back(fit.lr());
    if (fit.epoch() == 1) fit.set_lr(0.25);  // ends the schedule
  });
  model.fit(x, x,
            silent({.batch_size = 2, .epochs = 3, .steps_per_epoch = 4, .callbacks = {watch}}));
  EXPECT_THAT(rates, ElementsAre(0.5 / 4, 0.5 / 8, 0.25));
  EXPECT_EQ(model.optimizer().lr(), 0.25);
}

TEST_P(ModelTest, AccumulatedBatchesGiveTheMeanOfTheirGradients) {
  const Tensor x = torch::randn({12, 3}), y = torch::randn({12, 1});
  nn::Linear net(3, 1);
  Model whole(copy_of(net), strategy_), parts(net, strategy_);
  // Several replicas cannot clip what they accumulate.
  const double clip_norm = strategy_.num_replicas_in_sync() == 1 ? 0.1 : 0;
  whole.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss(), .clip_norm = clip_norm});
  parts.compile({.optimizer = Sgd({.lr = 0.1}),
                 .loss = nn::MSELoss(),
                 .clip_norm = clip_norm,
                 .accumulate_steps = 3});
  const History expected = whole.fit(x, y, silent({.batch_size = 12, .shuffle = false}));
  const History history = parts.fit(x, y, silent({.batch_size = 4, .shuffle = false}));
  EXPECT_NEAR(history["loss"][0], expected["loss"][0], 1e-5);
  EXPECT_TRUE(torch::allclose(pulled(parts)->weight, pulled(whole)->weight, 1e-5, 1e-6));
}

// Takes two inputs and returns two outputs.
struct TwoWaysImpl : nn::Module {
  TwoWaysImpl() {
    first = register_module("first", nn::Linear(2, 1));
    second = register_module("second", nn::Linear(3, 1));
  }
  std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) {
    return {first(a), second(b)};
  }
  nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoWays);

TEST_P(ModelTest, TakesSeveralInputsAndOutputs) {
  const Tensor a = torch::randn({20, 2}), b = torch::randn({20, 3});
  const Tensor c = torch::randn({20, 1}), d = torch::randn({20, 1});
  TwoWays net;
  const double first = torch::mse_loss(copy_of(net->first)(a), c).item<double>();
  const double second = torch::mse_loss(copy_of(net->second)(b), d).item<double>();
  Model model(net, strategy_);
  model.compile({.loss = nn::MSELoss(), .inputs = 2, .targets = 2, .loss_weights = {1, 0.5}});
  const Tensors tensors{a, b, c, d};
  EXPECT_NEAR(model.evaluate(tensors, kSilent)["loss"], first + 0.5 * second, 1e-5);
  const History history = model.fit(tensors, silent({.epochs = 3}));
  EXPECT_LT(history["loss"].back(), history["loss"].front());
  EXPECT_EQ(model.predict(Dataset::from_tensors({a, b}).batch(7)).sizes(),
            (std::vector<int64_t>{20, 1}));
}

TEST_P(ModelTest, StopsAfterTheEpochOrAtTheBatch) {
  Model model(nn::Linear(1, 1), strategy_);
  model.compile({.loss = nn::MSELoss()});
  const Tensor x = torch::ones({400, 1});
  FitOptions options = silent({.batch_size = 2, .epochs = 5, .shuffle = false});
  options.callbacks = {on_epoch_end([](Fit& fit, const Logs&) {
    if (fit.epoch() == 1) fit.stop();
  })};
  EXPECT_THAT(model.fit(x, x, options).epochs(), ElementsAre(0, 1));
  int64_t steps = 0;
  options.callbacks = {on_batch_end([](Fit& fit, const Logs&) { fit.stop(); }),
                       on_epoch_end([&](Fit& fit, const Logs&) { steps = fit.step_of_epoch(); })};
  EXPECT_THAT(model.fit(x, x, options).epochs(), ElementsAre(0));
  EXPECT_GE(steps, 1);
  EXPECT_LT(steps, 200);
}

TEST_P(ModelTest, CanBeCompiledAgain) {
  const Tensor x = torch::randn({16, 3}), y = torch::randn({16, 1});
  nn::Linear net(3, 1);
  Model model(net, strategy_);
  model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
  model.fit(x, y, silent({}));
  const double before = model.evaluate(x, y, kSilent)["loss"];
  const auto compile = [&] {
    model.compile({.optimizer = Adam({.lr = 0.01}), .loss = nn::MSELoss()});
  };
  if (on_servers()) {
    EXPECT_THAT(error_text(compile), HasSubstr("it already has an optimizer, sgd"));
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = nn::MSELoss()});
  } else {
    compile();
  }
  EXPECT_EQ(model.evaluate(x, y, kSilent)["loss"], before);
  model.fit(x, y, silent({.epochs = 5}));
  EXPECT_LT(model.evaluate(x, y, kSilent)["loss"], before);
}

TEST_P(ModelTest, SummaryListsLayersAndWhereTheyAre) {
  nn::Sequential net(nn::Linear(100, 30), nn::ReLU(), nn::Linear(30, 1));
  net[2]->as<nn::Linear>()->weight.requires_grad_(false);
  const Model model(net, strategy_);
  const std::string summary = model.summary();
  const std::string here = on_servers()                            ? "/job:ps/task:0 /job:ps/task:1"
                           : strategy_.name() == "mirrored"        ? "/cpu:0 /cpu:1"
                           : strategy_.name() == "central_storage" ? "/cpu:0"
                                                                   : "this process";
  EXPECT_EQ(summary,
            "Layer  Class   Shapes          Parameters  Place\n"
            "0      Linear  [30, 100] [30]  3,030       " +
                here + "\n" + "2      Linear  [1, 30] [1]     31          " + here + "\n" +
                "Trainable parameters: 3,031\n"
                "Frozen parameters: 30\n");
}

}  // namespace
}  // namespace trireme
