// Every strategy runs the same programs with the same results.
#include "trireme/distribute/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/distribute/strategy_kind.h"
#include "trireme/function/variable.h"
#include "trireme/ps/job_list.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/testing/wait_until.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {
namespace {

using internal::StepData;
using internal::StepFunction;
using internal::StepRunner;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr auto kEndTime = std::chrono::seconds(20);

internal::StrategyKind& kind_of(const Strategy& strategy) {
  return internal::Access<Strategy>::kind(strategy);
}

StepFunction step_function(const std::string& name, std::function<Tensors(const Tensors&)> body) {
  return function(name, std::function<Tensors(Iterator&)>([body](Iterator& data) -> Tensors {
                    const auto batch = data.next_optional();
                    return batch ? body(*batch) : Tensors();
                  }));
}

// A strategy that is made by its name. The cluster has one worker, so that the order of steps is
// the same everywhere.
class StrategyTest : public testing::TestWithParam<const char*> {
 protected:
  StrategyTest() {
    if (std::string(GetParam()) == "ps")
      cluster_.emplace(TestClusterOptions{.workers = 1, .ps = 2});
    strategy_ = make_strategy(cluster_ ? Cluster(cluster_->spec()) : Cluster(), GetParam());
  }

  bool on_servers(const Variable& variable) const {
    return variable.device().starts_with("/job:ps");
  }
  std::shared_ptr<StepRunner> runner() const { return kind_of(strategy_).runner(); }
  // Runs steps and returns the numbers in their sums.
  std::vector<double> sums(const StepFunction& step, const std::shared_ptr<StepData>& data,
                           int times) const {
    std::vector<double> numbers;
    for (const Tensor& sum : runner()->run(step, data, times).wait()) {
      numbers.push_back(sum.item<double>());
    }
    return numbers;
  }

  std::optional<InProcessTestCluster> cluster_;
  Strategy strategy_;
  // Returns the number of steps, of elements, their sum, and a number that depends on their order.
  const StepFunction count_ = step_function("count", [](const Tensors& batch) {
    const Tensor numbers = batch[0].to(torch::kDouble);
    return Tensors{torch::ones({}), torch::ones_like(numbers).sum(), numbers.sum(),
                   (numbers * torch::arange(numbers.numel())).sum()};
  });
};

INSTANTIATE_TEST_SUITE_P(Kinds, StrategyTest,
                         testing::Values("default", "ps", "mirrored", "central_storage"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StrategyTest, KnowsItsName) {
  EXPECT_EQ(strategy_.name(), GetParam());
  EXPECT_EQ(strategy_.num_replicas_in_sync(), 1);
  EXPECT_EQ(kind_of(strategy_).runner()->runs_here(), !cluster_);
  EXPECT_EQ(kind_of(strategy_).runner()->runs_at_once(), cluster_ ? 4 : 1);
}

TEST_P(StrategyTest, TheInnermostScopeIsTheCurrentStrategy) {
  EXPECT_EQ(current_strategy().name(), "default");
  {
    const auto outer = strategy_.scope();
    EXPECT_EQ(current_strategy().name(), GetParam());
    EXPECT_EQ(on_servers(Variable("a", torch::zeros({2}))), cluster_.has_value());
    {
      const auto inner = Strategy().scope();
      EXPECT_EQ(current_strategy().name(), "default");
      EXPECT_FALSE(on_servers(Variable("b", torch::zeros({2}))));
    }
    const auto again = current_strategy().scope();
    EXPECT_EQ(current_strategy().name(), GetParam());
  }
  EXPECT_EQ(current_strategy().name(), "default");
  EXPECT_FALSE(on_servers(Variable("c", torch::zeros({2}))));
}

TEST_P(StrategyTest, CopiesTheValuesOfDistributedModules) {
  const auto made = strategy_.distribute<torch::nn::Linear>(3, 2);
  const auto existing = strategy_.distribute(torch::nn::Linear(3, 2));
  const auto shared = strategy_.distribute(std::make_shared<torch::nn::LinearImpl>(3, 2));
  for (const auto& net : {made, existing, torch::nn::Linear(shared)}) {
    for (const Variable& variable : track(net)) {
      EXPECT_EQ(on_servers(variable), cluster_.has_value());
    }
    const torch::nn::Linear given(3, 2), got(3, 2);
    strategy_.push(net, given);
    strategy_.pull(net, got);
    EXPECT_TRUE(got->weight.equal(given->weight));
    EXPECT_TRUE(got->bias.equal(given->bias));
  }
  EXPECT_THAT(error_text([&] { strategy_.pull(made, torch::nn::Linear(3, 1)); }),
              HasSubstr("'weight' is Float [2, 3] in the distributed module and Float [1, 3] in "
                        "the local one"));
  const auto copy = function("copy", [&](const Tensor& x) {
    strategy_.pull(made, torch::nn::Linear(3, 2));
    return x;
  });
  EXPECT_THAT(error_text([&] { copy(torch::ones({})); }),
              HasSubstr("strategy.pull() copies once, during the capture"));
}

TEST_P(StrategyTest, RejectsAModuleOfAnotherStrategy) {
  torch::nn::Linear net(3, 2);
  const InProcessTestCluster other({.workers = 1, .ps = 1});
  const Strategy servers = ParameterServerStrategy(Cluster(other.spec()));
  servers.distribute(net);
  EXPECT_THAT(error_text([&] { strategy_.distribute(net); }),
              HasSubstr("variable 'weight' was made under another strategy than '" +
                        strategy_.name() + "'; call distribute() before"));
}

TEST_P(StrategyTest, CombinesTheValuesOfReplicas) {
  const auto values = strategy_.run([](const Tensor& x) { return x * 2; }, torch::ones({2}));
  EXPECT_TRUE(strategy_.reduce(ReduceOp::kSum, values).equal(torch::full({2}, 2.f)));
  const PerReplica<Tensor> two({torch::ones({1, 2}), torch::zeros({3, 2})});
  EXPECT_EQ(strategy_.gather(two).sizes(), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(strategy_.gather(PerReplica<Tensor>({two[0], two[0]}), 1).sizes(),
            (std::vector<int64_t>{1, 4}));
  EXPECT_THAT(error_text([&] { strategy_.gather(PerReplica<Tensor>({torch::ones({})})); }),
              HasSubstr("gather() was given a tensor without axes"));
}

TEST_P(StrategyTest, AddsUpTheResultsOfSteps) {
  const auto data = runner()->open_shared(Dataset::range(100).batch(7), 1);
  EXPECT_THAT(sums(count_, data, 10), ElementsAre(10, 70, 69 * 70 / 2, testing::_));
  EXPECT_THAT(sums(count_, data, 10), ElementsAre(5, 30, 4950 - 69 * 70 / 2, testing::_))
      << "the data ends";
  EXPECT_THAT(sums(count_, data, 10), ElementsAre());
  runner()->join();
}

TEST_P(StrategyTest, SharedDataHasEpochs) {
  const Dataset numbers = Dataset::range(10).batch(4);
  EXPECT_THAT(sums(count_, runner()->open_shared(numbers, 3), 20),
              ElementsAre(9, 30, 3 * 45, testing::_));
  EXPECT_THAT(sums(count_, runner()->open_shared(numbers, 0), 30),
              ElementsAre(30, 100, 450, testing::_));
}

TEST_P(StrategyTest, MakesDataByAFunction) {
  const auto make = [](const InputContext& context) {
    EXPECT_EQ(context.num_input_pipelines, 1);
    EXPECT_EQ(context.input_pipeline_id, 0);
    return Dataset::range(6).batch(2);
  };
  for (const DatasetCreator& creator :
       {DatasetCreator(make), strategy_.distribute_datasets_from_function(make),
        strategy_.distribute_dataset(Dataset::range(6).batch(2), {.shard = Shard::kData})}) {
    EXPECT_THAT(sums(count_, runner()->open(creator), 10), ElementsAre(3, 6, 15, 5 + 3 + 1));
  }
}

TEST_P(StrategyTest, DataBeginsAgainInAnotherOrder) {
  const Dataset shuffled = Dataset::range(200).shuffle(200).batch(200);
  const DatasetCreator creator([&](const InputContext&) { return shuffled; });
  for (const auto& data : {runner()->open(creator), runner()->open_shared(shuffled, 1)}) {
    const auto first = sums(count_, data, 2);
    EXPECT_THAT(sums(count_, data, 2), ElementsAre());
    data->restart();
    const auto second = sums(count_, data, 2);
    ASSERT_EQ(first.size(), 4u);
    ASSERT_EQ(second.size(), 4u);
    EXPECT_EQ(first[2], second[2]);
    EXPECT_NE(first[3], second[3]);
  }
}

TEST_P(StrategyTest, ACheckpointFollowsThePositionAcrossRestarts) {
  const TemporaryFolder folder;
  const auto data = runner()->open_shared(Dataset::range(200).shuffle(100).batch(10), 1);
  CheckpointManager manager(folder.path(), {data->position()});
  sums(count_, data, 3);
  data->restart();
  sums(count_, data, 2);
  manager.save(1);
  manager.wait();
  const auto next = sums(count_, data, 1);
  sums(count_, data, 100);
  data->restart();
  const auto of_next_pass = sums(count_, data, 1);
  ASSERT_EQ(manager.restore_or_initialize(), 1);
  EXPECT_EQ(sums(count_, data, 1), next);
  data->restart();
  EXPECT_EQ(sums(count_, data, 1), of_next_pass);
}

TEST_P(StrategyTest, TrainsAsLibTorchDoes) {
  torch::manual_seed(7);
  const Tensor x = torch::randn({40, 3}), y = x.sum(1, true);
  torch::nn::Linear expected(3, 1), got(3, 1);
  auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  strategy_.push(net, expected);
  Sgd optimizer(net, {.lr = 0.05});
  const auto step = step_function("step", [&](const Tensors& batch) {
    const Tensor loss = torch::mse_loss(net->forward(batch[0]), batch[1]);
    optimizer.minimize(loss);
    return Tensors{loss};
  });
  const auto data = runner()->open_shared(Dataset::from_tensors({x, y}).batch(8), 0);
  double loss = 0;
  for (int i = 0; i < 5; ++i) loss = sums(step, data, 10).at(0);
  runner()->join();
  strategy_.pull(net, got);

  torch::optim::SGD reference(expected->parameters(), 0.05);
  double expected_loss = 0;
  for (int i = 0; i < 50; ++i) {
    reference.zero_grad();
    const Tensor batch_loss =
        torch::mse_loss(expected->forward(x.narrow(0, i % 5 * 8, 8)), y.narrow(0, i % 5 * 8, 8));
    batch_loss.backward();
    reference.step();
    if (i >= 40) expected_loss += batch_loss.item<double>();
  }
  EXPECT_TRUE(torch::allclose(got->weight, expected->weight, 1e-4, 1e-5));
  EXPECT_NEAR(loss, expected_loss, 1e-4);
}

TEST_P(StrategyTest, AStepThatFailsIsAnError) {
  const Tensor table = torch::tensor({4.f, 5.f, 6.f});
  const auto step = step_function("look_up", [&](const Tensors& batch) {
    return Tensors{table.index_select(0, batch[0].reshape({1}))};
  });
  const auto data =
      runner()->open_shared(Dataset::from_tensors({torch::tensor({1L, 2L, 3L, 0L})}), 1);
  const auto good = runner()->run(step, data, 2);
  EXPECT_EQ(good.wait().at(0).item<float>(), 11);
  EXPECT_TRUE(good.ready());
  EXPECT_THAT(error_text([&] { runner()->run(step, data, 1).wait(); }),
              AllOf(HasSubstr("function 'look_up'"), HasSubstr("index out of range")));
  EXPECT_EQ(runner()->run(step, data, 5).wait().at(0).item<float>(), 4) << "the steps go on";
}

class MakeStrategy : public testing::Test {
 protected:
  InProcessTestCluster cluster_{{.workers = 2, .ps = 1}};
  Cluster me_{cluster_.spec()};
};

TEST_F(MakeStrategy, ChoosesByTheClusterWithoutAName) {
  EXPECT_EQ(make_strategy(me_, "").name(), "ps");
  EXPECT_EQ(make_strategy(me_, "default").name(), "default");
  EXPECT_EQ(make_strategy(Cluster(), "").name(), "default");
  EXPECT_EQ(make_strategy(me_, "ps", {.ps = {.replicas = 3}}).num_replicas_in_sync(), 3);
}

TEST_F(MakeStrategy, TakesTheNameFromTheCluster) {
  Cluster named = me_;
  named.strategy = "default";
  EXPECT_EQ(make_strategy(named).name(), "default");
  EXPECT_EQ(make_strategy(named, "ps").name(), "ps") << "a name that is given counts";
  EXPECT_EQ(make_strategy(me_).name(), "ps");
  EXPECT_EQ(make_strategy(Cluster()).name(), "default");
  const Cluster only_worker(ClusterSpec{{"worker", {"127.0.0.1:1"}}}, TaskId{"worker", 0});
  EXPECT_EQ(make_strategy(only_worker).name(), "multi_worker_mirrored");
}

TEST_F(MakeStrategy, RejectsTasksThatDoNotTrain) {
  EXPECT_THAT(error_text([&] {
                ParameterServerStrategy(Cluster(cluster_.spec(), {{"ps", 0}}));
              }),
              HasSubstr("is made by the chief's program, but this process is /job:ps/task:0"));
  EXPECT_THAT(error_text([&] {
                make_strategy(Cluster(cluster_.spec(), {{"worker", 1}}));
              }),
              HasSubstr("is made by the chief's program, but this process is /job:worker/task:1"));
  EXPECT_THAT(error_text([&] {
                make_strategy(Cluster(cluster_.spec(), {{"worker", 1}}), "mirrored");
              }),
              HasSubstr("each would train alone"));
  EXPECT_THAT(error_text([&] {
                make_strategy(Cluster(ClusterSpec{{"worker", {"a:1", "b:1"}}}));
              }),
              HasSubstr("this process is none of its tasks"));
}

TEST_F(MakeStrategy, TheEvaluatorEvaluatesInItsProcess) {
  const Cluster evaluator(cluster_.spec(), TaskId{"evaluator", 0});
  const Strategy strategy = make_strategy(evaluator, "ps");
  EXPECT_EQ(strategy.name(), "default");
  EXPECT_THAT(error_text([&] { kind_of(strategy).check_trains(); }),
              HasSubstr("call evaluate_checkpoints()"));
  kind_of(make_strategy(me_)).check_trains();
  kind_of(Strategy()).check_trains();
}

TEST_F(MakeStrategy, ModulesOfTwoStrategiesDoNotMix) {
  const Strategy servers = make_strategy(me_), mirrored = MirroredStrategy();
  const auto scope = servers.scope();
  EXPECT_EQ(error_text([&] { mirrored.distribute(torch::nn::Linear(1, 1)); }),
            "a module was given the strategy 'mirrored' in the scope of another one, 'ps'; leave "
            "the strategy out, or end the scope first");
  EXPECT_THAT(error_text([&] { mirrored.distribute<torch::nn::Linear>(1, 1); }),
              HasSubstr("in the scope of another one"));
  EXPECT_THAT(error_text([&] { Strategy().distribute<torch::nn::Linear>(1, 1); }),
              HasSubstr("'default' in the scope of another one"));
  EXPECT_TRUE(current_strategy().distribute<torch::nn::Linear>(1, 1)->weight.defined());
}

TEST_F(MakeStrategy, RejectsOtherNames) {
  EXPECT_EQ(error_text([&] { make_strategy(me_, "PS"); }),
            "'PS' is not the name of a strategy; the strategies are 'ps', "
            "'multi_worker_mirrored', 'mirrored', 'central_storage' and 'default'");
  EXPECT_THAT(error_text([&] { make_strategy(me_, "multi_worker_mirrored"); }),
              HasSubstr("this process is none of its tasks"));
  EXPECT_THAT(error_text([&] { make_strategy(Cluster(), "ps"); }), HasSubstr("no cluster"));
}

TEST_F(MakeStrategy, CopiesOfAStrategyShareACoordinator) {
  const ParameterServerStrategy servers(me_), copy = servers, others(me_);
  const Strategy strategy = servers;
  EXPECT_EQ(&kind_of(strategy), &kind_of(copy));
  EXPECT_NE(&kind_of(strategy), &kind_of(others));
  EXPECT_EQ(kind_of(strategy).runner(), kind_of(copy).runner());
  const auto scope = copy.scope();
  EXPECT_EQ(&kind_of(current_strategy()), &kind_of(strategy));
}

TEST_F(MakeStrategy, ALostParameterServerIsPsLost) {
  const Strategy strategy = make_strategy(me_, "ps");
  const auto runner = kind_of(strategy).runner();
  const auto scope = strategy.scope();
  const Variable total("total", torch::zeros({}, torch::kInt64));
  const auto step = step_function("step", [&](const Tensors& batch) {
    total.assign_add(batch[0]);
    return batch;
  });
  const auto data = runner->open_shared(Dataset::range(100), 0);
  runner->run(step, data, 5).wait();
  cluster_.restart({"ps", 0});
  const auto lost = runner->run(step, data, 5);
  EXPECT_THROW(lost.wait(), PsLost);
  EXPECT_THROW(runner->join(), PsLost);
  EXPECT_THROW(runner->run(step, data, 5), PsLost);
}

// The closures are queued until the program has dropped everything, so that an answer releases the
// last handle of the strategy. Its end must not block the thread that handles answers.
TEST_F(MakeStrategy, EndsWithTheLastStepOfAFunctionThatHoldsIt) {
  const TaskId ps{"ps", 0}, workers[] = {{"worker", 0}, {"worker", 1}};
  Channel channel({.address = cluster_.spec().address(ps), .task = ps.to_string()});
  const auto jobs = [&] { return value_or_throw(list_jobs(channel, after(kEndTime))).size(); };
  // The answers that the end waits for may arrive on any of several threads.
  for (int i = 0; i < 4; ++i) {
    for (const TaskId& worker : workers) cluster_.kill(worker);
    std::promise<void> released;
    {
      const Strategy strategy = make_strategy(me_, "ps");
      const auto runner = kind_of(strategy).runner();
      // Destroyed after the strategy, since it is captured before.
      const std::shared_ptr<void> last(nullptr, [&](void*) { released.set_value(); });
      const auto step =
          step_function("step", [last, strategy](const Tensors& batch) { return batch; });
      runner->run(step, runner->open_shared(Dataset::range(100), 1), 5);
    }
    EXPECT_EQ(jobs(), 1u);
    for (const TaskId& worker : workers) cluster_.start(worker);
    ASSERT_EQ(released.get_future().wait_for(kEndTime), std::future_status::ready)
        << "a thread that handles answers is blocked";
    EXPECT_TRUE(wait_until([&] { return jobs() == 0; }, kEndTime)) << "the strategy does not end";
  }
}

}  // namespace
}  // namespace trireme
