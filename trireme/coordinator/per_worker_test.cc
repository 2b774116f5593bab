// Tests of per-worker datasets and tensors, of changing workers, and of native functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <set>

#include "trireme/base/status.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/coordinator/worker_resources.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using torch::Tensor;

class PerWorkerTest : public testing::Test {
 protected:
  int64_t total() const { return total_->read().item<int64_t>(); }

  InProcessTestCluster cluster_{{.workers = 3, .ps = 2}};
  ParameterServerStrategy strategy_{Cluster(cluster_.spec_with_workers({0, 1}))};
  ParameterServers::Scope scope_ = strategy_.scope();
  std::optional<Variable> total_{std::in_place, "total", torch::zeros({}, torch::kInt64)};
  const Function<Tensor(Iterator&)> add_ =
      function("add", std::function<Tensor(Iterator&)>([this](Iterator& numbers) {
                 const Tensor number = numbers.next().sum();
                 total_->assign_add(number);
                 return number;
               }));
  ClusterCoordinator coordinator_{strategy_};
};

TEST_F(PerWorkerTest, EachWorkerDrawsFromItsOwnDataset) {
  std::vector<int> asked;
  const auto data = coordinator_.create_per_worker_dataset([&](const InputContext& context) {
    EXPECT_EQ(context.num_input_pipelines, 2);
    EXPECT_EQ(context.get_per_replica_batch_size(32), 32);
    asked.push_back(context.input_pipeline_id);
    const int64_t first = 1000 * (context.input_pipeline_id + 1);
    return Dataset::range(first, first + 1000);
  });
  EXPECT_THAT(asked, ElementsAre(0, 1));
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 400; ++i) values.push_back(coordinator_.schedule(add_, data.iterator()));
  coordinator_.join();
  std::vector<std::set<int64_t>> drawn(2);
  int64_t sum = 0;
  for (const Tensor& value : coordinator_.fetch(values)) {
    const int64_t number = value.item<int64_t>();
    EXPECT_TRUE(drawn.at(number / 1000 - 1).insert(number % 1000).second) << number;
    sum += number;
  }
  EXPECT_EQ(total(), sum);
  // Each worker has drawn a prefix of its dataset, each element once.
  for (const auto& numbers : drawn) {
    if (numbers.empty()) continue;
    EXPECT_EQ(*numbers.rbegin() + 1, static_cast<int64_t>(numbers.size()));
  }
  EXPECT_EQ(add_.captures(), 1);
}

TEST_F(PerWorkerTest, CapturesAFunctionForShapesThatAWorkerDraws) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(4).repeat());
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 9; ++i) values.push_back(coordinator_.schedule(add_, data.iterator()));
  coordinator_.join();
  std::vector<int64_t> sums;
  for (const Tensor& value : coordinator_.fetch(values)) sums.push_back(value.item<int64_t>());
  EXPECT_THAT(sums, UnorderedElementsAre(6, 22, 17, 6, 22, 17, 6, 22, 17));
  EXPECT_EQ(total(), 3 * 45);
  EXPECT_EQ(add_.captures(), 2);
}

TEST_F(PerWorkerTest, FetchRunsDeferredCaptures) {
  const auto data = coordinator_.create_per_worker_dataset([](const InputContext& context) {
    // The second worker's elements have another shape than the first worker's.
    return Dataset::range(6).batch(context.input_pipeline_id == 0 ? 2 : 3).repeat();
  });
  const Time limit = after(seconds(20));
  while (add_.captures() < 2 && Clock::real().now() < limit) {
    std::vector<RemoteValue<>> values;
    for (int i = 0; i < 50; ++i) values.push_back(coordinator_.schedule(add_, data.iterator()));
    for (const Tensor& value : coordinator_.fetch(values)) {
      EXPECT_TRUE((std::set<int64_t>{1, 5, 9, 3, 12}).contains(value.item<int64_t>())) << value;
    }
  }
  EXPECT_EQ(add_.captures(), 2);
}

TEST_F(PerWorkerTest, RaisesTheErrorOfACaptureForShapesThatAWorkerDraws) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(5).batch(4));
  const auto first = function("first", std::function<Tensor(Iterator&)>([](Iterator& numbers) {
                                return numbers.next().reshape({2, 2}).sum();
                              }));
  for (int i = 0; i < 2; ++i) coordinator_.schedule(first, data.iterator());
  const Error error = error_of([&] { coordinator_.join(); });
  EXPECT_THAT(error.what(), HasSubstr("function 'first'"));
  EXPECT_THAT(error.what(), HasSubstr("2, 2"));
  coordinator_.join();
}

TEST_F(PerWorkerTest, AClosureThatIsCapturedAgainKeepsTheProgramsElements) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(6).batch(4).repeat());
  Iterator here = Dataset::range(100, 108).iterator();
  const auto both = function(
      "both", std::function<Tensor(Iterator&, Iterator&)>([](Iterator& there, Iterator& here) {
        const Tensor theirs = there.next().sum();
        return theirs * 1000 + here.next();
      }));
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 8; ++i) values.push_back(coordinator_.schedule(both, data.iterator(), here));
  std::multiset<int64_t> theirs, ours;
  for (const Tensor& value : coordinator_.fetch(values)) {
    theirs.insert(value.item<int64_t>() / 1000);
    ours.insert(value.item<int64_t>() % 1000);
  }
  // The worker's batches are 0 1 2 3 and 4 5. Each of the program's elements is used once.
  EXPECT_EQ(theirs, (std::multiset<int64_t>{6, 6, 6, 6, 9, 9, 9, 9}));
  EXPECT_EQ(ours, (std::multiset<int64_t>{100, 101, 102, 103, 104, 105, 106, 107}));
  EXPECT_EQ(both.captures(), 2);
}

TEST_F(PerWorkerTest, AnIteratorThatIsPassedTwiceIsOneIterator) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(6).batch(4).repeat());
  const auto both = function(
      "both", std::function<Tensor(Iterator&, Iterator&)>([](Iterator& one, Iterator& same) {
        const Tensor first = one.next().sum();
        return first * 1000 + same.next().sum();
      }));
  const auto value = coordinator_.schedule(both, data.iterator(), data.iterator());
  EXPECT_EQ(coordinator_.fetch(value).item<int64_t>(), 6009);
}

TEST_F(PerWorkerTest, FetchesNestedValues) {
  const auto add = function("add", [](const Tensor& x) { return x + 1; });
  const auto value = [&](int number) { return coordinator_.schedule(add, torch::tensor(number)); };
  const std::map<std::string, std::vector<std::pair<RemoteValue<>, RemoteValue<>>>> nested = {
      {"a", {{value(1), value(2)}, {value(3), value(4)}}}};
  const auto fetched = coordinator_.fetch(nested);
  EXPECT_EQ(fetched.at("a")[1].first.item<int>(), 4);
  EXPECT_EQ(fetched.at("a")[1].second.item<int>(), 5);
  const auto [first, second] = coordinator_.fetch(std::tuple{value(7), value(8)});
  EXPECT_EQ(first.item<int>() + second.item<int>(), 17);
}

TEST_F(PerWorkerTest, ADatasetFunctionThatThrowsLeavesTheWorkersUnchanged) {
  bool throws = false;
  const auto data = coordinator_.create_per_worker_dataset([&](const InputContext&) {
    if (throws) throw std::runtime_error("no data");
    return Dataset::range(1, 2).repeat();
  });
  throws = true;
  EXPECT_THROW(coordinator_.update_workers(cluster_.spec_with_workers({2})), std::runtime_error);
  EXPECT_EQ(coordinator_.workers().size(), 2u);
  for (int i = 0; i < 10; ++i) coordinator_.schedule(add_, data.iterator());
  coordinator_.join();
  EXPECT_EQ(total(), 10);
  throws = false;
  std::vector<std::pair<int, int>> told;
  const auto more = coordinator_.create_per_worker_dataset([&](const InputContext& context) {
    told.push_back({context.input_pipeline_id, context.num_input_pipelines});
    return Dataset::range(1, 2).repeat();
  });
  coordinator_.update_workers(cluster_.spec_with_workers({2}));
  EXPECT_THAT(told, ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(0, 1)));
}

TEST_F(PerWorkerTest, JoinRaisesTheEndOfData) {
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(3));
  // A worker may reach the end before the last one is scheduled; then schedule() raises it.
  const Error error = error_of([&] {
    for (int i = 0; i < 20; ++i) coordinator_.schedule(add_, data.iterator());
    coordinator_.join();
  });
  EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
  EXPECT_THAT(error.what(), HasSubstr("/job:worker/task:"));
  coordinator_.join();
}

TEST_F(PerWorkerTest, ARestartedWorkerContinuesItsDataset) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const Dataset dataset = Dataset::range(8).shuffle(8).repeat(2);
  const auto data = coordinator_.create_per_worker_dataset(dataset);
  const auto& resource = internal::Access<PerWorkerDataset>::resource(data);
  const auto position = [&] { return value_or_throw(resource->positions()).at(0); };
  Iterator expected = dataset.iterator({.seed = position().seed});
  for (uint64_t i = 0; i < 16; ++i) {
    if (i % 5 == 2) cluster_.restart({"worker", 0});
    const auto drawn = coordinator_.fetch(coordinator_.schedule(add_, data.iterator()));
    EXPECT_TRUE(drawn.equal(expected.next())) << i;
    EXPECT_EQ(position().next, i + 1);
    EXPECT_THAT(position().returned, testing::IsEmpty());
  }
  EXPECT_EQ(total(), 2 * 28);
  coordinator_.schedule(add_, data.iterator());
  EXPECT_EQ(error_of([&] { coordinator_.join(); }).code(), ErrorCode::kEndOfData);
}

TEST_F(PerWorkerTest, ClosuresDrawFromARestoredPosition) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(100));
  const auto& resource = internal::Access<PerWorkerDataset>::resource(data);
  const auto draw = [&] {
    return coordinator_.fetch(coordinator_.schedule(add_, data.iterator())).item<int64_t>();
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(draw(), i);
  throw_if_error(resource->restore({{.seed = 1, .next = 40, .returned = {2, 17}}}));
  EXPECT_EQ(draw(), 2);
  cluster_.restart({"worker", 0});
  EXPECT_EQ(draw(), 17);
  EXPECT_EQ(draw(), 40);
  EXPECT_EQ(value_or_throw(resource->positions()).at(0),
            (internal::IteratorPosition{.seed = 1, .next = 41}));
}

TEST_F(PerWorkerTest, CountsTheElementsOfEachRepetitionAndCapture) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(4).repeat());
  const auto& resource = internal::Access<PerWorkerDataset>::resource(data);
  coordinator_.schedule({.repeat = 30}, add_, data.iterator());
  for (int i = 0; i < 5; ++i) coordinator_.schedule(add_, data.iterator());
  coordinator_.join();
  const internal::IteratorPosition position = value_or_throw(resource->positions()).at(0);
  EXPECT_EQ(position.next, 35u);
  EXPECT_THAT(position.returned, testing::IsEmpty());
}

TEST_F(PerWorkerTest, EachRepetitionDrawsTheNextElements) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(1, 101));
  const auto last = coordinator_.schedule({.repeat = 50}, add_, data.iterator());
  EXPECT_EQ(coordinator_.fetch(last).item<int64_t>(), 50);
  EXPECT_EQ(total(), 50 * 51 / 2);
  coordinator_.schedule({.repeat = 50}, add_, data.iterator());
  coordinator_.join();
  EXPECT_EQ(total(), 100 * 101 / 2);

  Iterator here = Dataset::range(5).iterator();
  EXPECT_THAT(error_text([&] { coordinator_.schedule({.repeat = 2}, add_, here); }),
              HasSubstr("create_per_worker_dataset"));
  EXPECT_EQ(here.next().item<int64_t>(), 0);  // The rejected call drew nothing.
  EXPECT_THAT(error_text([&] { coordinator_.schedule({.repeat = 0}, add_, data.iterator()); }),
              HasSubstr("repeat"));
}

TEST_F(PerWorkerTest, ARepeatedClosureContinuesAfterACaptureForOtherShapes) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(10).batch(4).repeat());
  coordinator_.schedule({.repeat = 30}, add_, data.iterator());
  coordinator_.join();
  EXPECT_EQ(total(), 10 * 45);
  EXPECT_EQ(add_.captures(), 2);
}

TEST_F(PerWorkerTest, RepetitionsTrainANet) {
  coordinator_.update_workers(cluster_.spec_with_workers({0}));
  torch::manual_seed(5);
  auto net = strategy_.distribute<torch::nn::Linear>(3, 1);
  Sgd optimizer(net, {.lr = 0.05});
  const Tensor x = torch::randn({64, 3});
  const auto data = coordinator_.create_per_worker_dataset(
      Dataset::from_tensors({x, x.sum(1, true)}).repeat().batch(8));
  const auto step = function("step", std::function<Tensor(Iterator&)>([&](Iterator& batches) {
                               auto [inputs, targets] = batches.next<2>();
                               const Tensor loss = torch::mse_loss(net->forward(inputs), targets);
                               optimizer.minimize(loss);
                               return loss;
                             }));
  const float before =
      coordinator_.fetch(coordinator_.schedule(step, data.iterator())).item<float>();
  const auto after = coordinator_.schedule({.repeat = 200}, step, data.iterator());
  EXPECT_LT(coordinator_.fetch(after).item<float>(), before / 20);
}

TEST_F(PerWorkerTest, AClosureGetsTheTensorOfItsWorker) {
  const auto offset = coordinator_.create_per_worker_tensor([](const InputContext& context) {
    return torch::tensor(int64_t{100} * (context.input_pipeline_id + 1));
  });
  const auto shift = function(
      "shift", [](const Tensor& x, const Tensor& by, const Tensor& y) { return x + by + y; });
  const Tensor one = torch::ones({}, torch::kInt64);
  std::vector<RemoteValue<>> values;
  for (int i = 0; i < 20; ++i) values.push_back(coordinator_.schedule(shift, one, offset, one));
  for (const Tensor& value : coordinator_.fetch(values)) {
    const int64_t number = value.item<int64_t>();
    EXPECT_TRUE(number == 102 || number == 202) << number;
  }
}

TEST_F(PerWorkerTest, AnAddedWorkerGetsClosuresAndADataset) {
  std::atomic<int> made = 0;
  const auto data = coordinator_.create_per_worker_dataset([&](const InputContext&) {
    ++made;
    return Dataset::range(1).repeat();
  });
  EXPECT_EQ(made, 2);
  coordinator_.update_workers(cluster_.spec_with_workers({0, 2}));
  EXPECT_EQ(made, 3);
  const Time limit = after(seconds(20));
  const auto done_by = [&](int worker) {
    for (const WorkerState& state : coordinator_.workers()) {
      if (state.task.index == worker) return state.closures_done;
    }
    return uint64_t{0};
  };
  while (done_by(2) == 0 && Clock::real().now() < limit) {
    for (int i = 0; i < 100; ++i) coordinator_.schedule(add_, data.iterator());
    coordinator_.join();
  }
  EXPECT_GT(done_by(2), 0u);
  ASSERT_EQ(coordinator_.workers().size(), 2u);
  EXPECT_EQ(coordinator_.workers()[1].task, (TaskId{"worker", 2}));
  EXPECT_THAT(error_text([&] {
                coordinator_.update_workers(ClusterSpec{{"ps", {"a:1"}}});
              }),
              HasSubstr("no workers"));
}

TEST_F(PerWorkerTest, WorkersComeAndGoWhileClosuresRun) {
  constexpr int kClosures = 3000;
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(1, 2).repeat());
  for (int i = 0; i < kClosures; ++i) {
    if (i % 300 == 0) {
      coordinator_.update_workers(cluster_.spec_with_workers({(i / 300) % 3}));
    }
    coordinator_.schedule(add_, data.iterator());
  }
  coordinator_.join();
  EXPECT_EQ(total(), kClosures);
}

TEST_F(PerWorkerTest, AMissedDeadlineFailsTheClosureAndCancelsTheOthers) {
  EXPECT_EQ(strategy_.num_replicas_in_sync(), 1);  // asks the workers, while they are up
  for (int worker : {0, 1}) cluster_.kill({"worker", worker});
  const auto data = coordinator_.create_per_worker_dataset(Dataset::range(100));
  const auto late = coordinator_.schedule({.deadline = milliseconds(50)}, add_, data.iterator());
  const auto other = coordinator_.schedule(add_, data.iterator());
  const Error error = error_of([&] { coordinator_.join(); });
  EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(error.what(), HasSubstr("of function 'add'"));
  EXPECT_EQ(error_of([&] { coordinator_.fetch(late); }).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(error_of([&] { coordinator_.fetch(other); }).code(), ErrorCode::kCancelled);
  for (int worker : {0, 1}) cluster_.start({"worker", worker});
  coordinator_.schedule({.deadline = seconds(60)}, add_, data.iterator());
  coordinator_.join();
}

const auto kReverse =
    native_function("reverse", [](const Tensor& x) { return torch::flip(x, {0}); });
const auto kPair = native_function("pair", [](const Tensor& x, const Tensor& y) {
  if (x.dim() != y.dim()) throw std::runtime_error("they do not match");
  return std::vector<Tensor>{y, x};
});

const auto kOdd = native_function("odd", [] { throw 42; });
const auto kCancels =
    native_function("cancels", [] { throw Error(ErrorCode::kCancelled, "says the user"); });

TEST_F(PerWorkerTest, ANativeFunctionRunsOnWorkersOfTheSameBinary) {
  const auto reversed = coordinator_.schedule(kReverse, torch::arange(3));
  EXPECT_TRUE(coordinator_.fetch(reversed).equal(torch::tensor({2, 1, 0})));
  const auto pair = coordinator_.schedule(kPair, torch::ones({1}), torch::zeros({1}));
  EXPECT_EQ(coordinator_.fetch(pair)[1].item<float>(), 1.0f);
  coordinator_.schedule(kPair, torch::ones({1}), torch::zeros({}));
  const Error error = error_of([&] { coordinator_.join(); });
  EXPECT_THAT(error.what(), HasSubstr("function 'pair'"));
  EXPECT_THAT(error.what(), HasSubstr("they do not match"));
  coordinator_.schedule(kOdd);
  EXPECT_THAT(error_text([&] { coordinator_.join(); }), HasSubstr("function 'odd'"));
  coordinator_.schedule(kCancels);
  EXPECT_EQ(error_of([&] { coordinator_.join(); }).code(), ErrorCode::kAborted);
  EXPECT_THAT(error_text([] { native_function("pair", [](const Tensor& x) { return x; }); }),
              HasSubstr("native function 'pair'"));
}

}  // namespace
}  // namespace trireme
