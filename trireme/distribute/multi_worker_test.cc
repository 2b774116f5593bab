// Workers that train together, as threads of one process, each with a server of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "trireme/distribute/strategy.h"
#include "trireme/function/function.h"
#include "trireme/function/module.h"
#include "trireme/rpc/certificates.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/relative_distance.h"
#include "trireme/testing/worker_threads.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

const MultiWorkerMirroredStrategyOptions kQuick{.lease = seconds(5),
                                                .connect_timeout = seconds(60)};

class MultiWorkerTest : public testing::TestWithParam<CommunicationImplementation> {
 protected:
  static MultiWorkerMirroredStrategyOptions options() {
    MultiWorkerMirroredStrategyOptions options = kQuick;
    options.implementation = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Implementations, MultiWorkerTest,
                         testing::Values(CommunicationImplementation::kRing,
                                         CommunicationImplementation::kShm));

TEST_P(MultiWorkerTest, AllWorkersStartWithTheValuesOfTheFirst) {
  const WorkerThreads workers(3);
  std::vector<Tensor> values(3);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, options());
    EXPECT_EQ(strategy.num_replicas_in_sync(), 3);
    const auto scope = strategy.scope();
    const Variable w("w", torch::full({4}, me.task->index + 5.0));
    values[me.task->index] = w.read().clone();
  }),
              Each(""));
  for (const Tensor& value : values) EXPECT_TRUE(value.equal(torch::full({4}, 5.0)));
}

TEST_P(MultiWorkerTest, ValuesOfAllReplicasAreCombined) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    MultiWorkerMirroredStrategyOptions two = options();
    two.devices = {"/cpu:0", "/cpu:1"};
    const MultiWorkerMirroredStrategy strategy(me, two);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
    const auto scope = strategy.scope();
    Variable sum("sum", torch::zeros({}, torch::kDouble), {.aggregation = Aggregation::kSum});
    const auto step = [&] {
      const auto ids = strategy.run([&] {
        const Tensor id = torch::full({}, static_cast<double>(replica_id()), torch::kDouble);
        sum.assign(id);
        return torch::cat({id.view(1), all_reduce(ReduceOp::kMean, id).view(1)});
      });
      return strategy.reduce(ReduceOp::kSum, ids);
    };
    // Both as a captured function and as ordinary code.
    const auto captured = function("step", step);
    for (int i = 0; i < 2; ++i) {
      const Tensor ids = i == 0 ? captured() : step();
      EXPECT_EQ(ids[0].item<double>(), 0 + 1 + 2 + 3);
      EXPECT_EQ(ids[1].item<double>(), 4 * 1.5);
      EXPECT_EQ(sum.read().item<double>(), 6);
    }
  }),
              Each(""));
}

TEST_P(MultiWorkerTest, WorkersWithCertificatesTrainTogether) {
  const WorkerThreads workers(2);
  const TemporaryFolder certs;
  throw_if_error(write_certificates(certs.path(), workers.cluster(0).spec).status());
  const Tensor values = torch::rand({1 << 20});
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    MultiWorkerMirroredStrategyOptions secure = options();
    secure.certs = certs.path();
    const MultiWorkerMirroredStrategy strategy(me, secure);
    const auto scope = strategy.scope();
    Variable w("w", me.task->index == 0 ? values : torch::zeros_like(values),
               {.aggregation = Aggregation::kSum});
    const auto step = function("step", [&] { strategy.run([&] { w.assign(w.read() * 2); }); });
    step();
    EXPECT_TRUE(w.read().equal(values * 4));
  }),
              Each(""));
}

// 1.001 and 2.001 become 1 and 2 as bfloat16, and the sum of these is exact.
TEST_P(MultiWorkerTest, GradientsTravelInTheDtypeThatIsAskedFor) {
  for (const bool shortened : {false, true}) {
    const WorkerThreads workers(2);
    EXPECT_THAT(workers.run([&](const Cluster& me) {
      MultiWorkerMirroredStrategyOptions wire = options();
      if (shortened) wire.gradient_dtype = torch::kBFloat16;
      const MultiWorkerMirroredStrategy strategy(me, wire);
      const auto scope = strategy.scope();
      const std::vector<Variable> w = {Variable("w", torch::zeros({3}, torch::kDouble))};
      Sgd optimizer(w, {.lr = 1});
      const auto step = function("step", [&] {
        strategy.run([&] { optimizer.minimize((w[0].read() * (1.001 + me.task->index)).sum()); });
      });
      step();
      const double expected = shortened ? -3 : -3.002;
      EXPECT_LE(relative_distance(w[0].read(), torch::full({3}, expected, torch::kDouble)), 1e-12);
    }),
                Each(""));
  }
}

// Gradients go in many buckets, and some of them are sparse.
TEST_P(MultiWorkerTest, StepsOfOnesOwnMakeTheUpdatesOfOneProcess) {
  const auto train = [](const Strategy& strategy, const PerReplica<Tensor>& ids) {
    std::vector<Tensor> weights;
    for (int i = 0; i < 4; ++i) {
      weights.push_back(torch::arange(6, torch::kDouble).view({3, 2}) * (i + 1));
    }
    const auto scope = strategy.scope();
    std::vector<Variable> variables;
    for (int i = 0; i < 4; ++i) variables.emplace_back("w" + std::to_string(i), weights[i]);
    Adam optimizer(variables, {.lr = 0.1});
    const auto step = function("step", [&](const PerReplica<Tensor>& parts) {
      const auto replica = [&](const Tensor& mine) {
        Tensor loss = torch::zeros({}, torch::kDouble);
        for (size_t i = 0; i < variables.size(); ++i) {
          loss = loss + (i == 1 ? torch::embedding(variables[i].read(), mine, -1, false, true)
                                : variables[i].read() * mine.sum())
                            .square()
                            .sum();
        }
        optimizer.minimize(loss);
      };
      strategy.run(replica, parts);
    });
    for (int i = 0; i < 5; ++i) step(ids);
    std::vector<Tensor> trained;
    for (const Variable& variable : variables) trained.push_back(variable.read().clone());
    return trained;
  };
  const WorkerThreads workers(2);
  std::vector<std::vector<Tensor>> trained(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, options());
    trained[me.task->index] =
        train(strategy, PerReplica<Tensor>({torch::arange(2) + me.task->index}));
  }),
              Each(""));
  const auto expected = train(MirroredStrategy({.devices = {"/cpu:0", "/cpu:1"}}),
                              PerReplica<Tensor>({torch::arange(2), torch::arange(2) + 1}));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(relative_distance(trained[0][i], expected[i]), 1e-12) << i;
    EXPECT_TRUE(trained[0][i].equal(trained[1][i])) << i;
  }
}

TEST_P(MultiWorkerTest, WorkersThatMakeOtherCallsGetAnErrorThatNamesBoth) {
  const WorkerThreads workers(2);
  const auto errors = workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, options());
    const auto scope = strategy.scope();
    const Variable w("w", torch::ones({me.task->index + 2}));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 (/job:worker/task:0)"), HasSubstr("[2]"),
                                 HasSubstr("rank 1 (/job:worker/task:1)"), HasSubstr("[3]"),
                                 HasSubstr("variable 'w'"))));
}

TEST_P(MultiWorkerTest, AnErrorInAStepOfOneWorkerEndsTheStepsOfAll) {
  const WorkerThreads workers(3);
  const auto errors = workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, options());
    const auto scope = strategy.scope();
    Variable w("w", torch::ones({2}), {.aggregation = Aggregation::kSum});
    const auto step = function("step", [&](const Tensor& index) {
      strategy.run([&] { w.assign(torch::ones({3, 2}).index_select(0, index).sum(0)); });
    });
    step(torch::zeros({1}, torch::kLong));
    step(torch::full({1}, me.task->index == 1 ? 7 : 0, torch::kLong));
  });
  EXPECT_THAT(errors, Each(HasSubstr("index out of range")));
}

// Worker 1 is up, but makes no call before worker 0 has given up.
TEST_P(MultiWorkerTest, AWorkerWaitsForABusyOneForTheTimeOfACall) {
  const WorkerThreads workers(2);
  std::promise<void> given_up;
  const auto errors = workers.run([&](const Cluster& me) {
    MultiWorkerMirroredStrategyOptions impatient = options();
    impatient.call_timeout = seconds(3);
    const MultiWorkerMirroredStrategy strategy(me, impatient);
    if (me.task->index == 1) {
      EXPECT_EQ(given_up.get_future().wait_for(seconds(60)), std::future_status::ready);
      return;
    }
    const absl::Cleanup has_given_up = [&] { given_up.set_value(); };
    const auto scope = strategy.scope();
    const Variable w("w", torch::ones({2}));
  });
  EXPECT_THAT(errors, ElementsAre(AllOf(HasSubstr("rank 1 (/job:worker/task:1), which did not"),
                                        HasSubstr("raise call_timeout")),
                                  ""));
}

TEST(MultiWorker, TheTimeOfACallIsPositive) {
  try {
    MultiWorkerMirroredStrategy strategy(Cluster(), {.call_timeout = seconds(0)});
    FAIL() << "no call could be made";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("call_timeout must be longer than 0"));
  }
}

TEST(MultiWorker, TrainsAloneWithoutACluster) {
  const MultiWorkerMirroredStrategy strategy{Cluster()};
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_EQ(strategy.name(), "multi_worker_mirrored");
}

TEST(MultiWorker, IsForWorkersOnly) {
  const Cluster server(ClusterSpec{{"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}},
                       TaskId{"ps", 0});
  try {
    MultiWorkerMirroredStrategy strategy(server);
    FAIL() << "a parameter server cannot be a worker";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/job:ps/task:0"), HasSubstr("use strategy 'ps'")));
  }
}

TEST(MultiWorker, CertificatesAndInsecureExcludeEachOther) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    MultiWorkerMirroredStrategyOptions options = kQuick;
    options.certs = "certs";
    options.insecure = true;
    MultiWorkerMirroredStrategy(me, options);
  }),
              Each(HasSubstr("both certificates (certs) and the option insecure")));
}

TEST(MultiWorker, GradientsTravelAsFloatingPointNumbers) {
  const WorkerThreads workers(2);
  const auto errors = workers.run([&](const Cluster& me) {
    MultiWorkerMirroredStrategyOptions options = kQuick;
    options.gradient_dtype = torch::kInt;
    MultiWorkerMirroredStrategy(me, options);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("gradient_dtype"), HasSubstr("Int"))));
}

TEST(MultiWorker, ReplicasWriteToVariablesOfTheStrategyOnly) {
  const WorkerThreads workers(2);
  const auto errors = workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, kQuick);
    torch::nn::BatchNorm1d norm(2);
    track(norm, "backbone");
    const auto scope = strategy.scope();
    const Variable w("w", torch::ones({2}));
    const auto step = function("step", [&](const Tensor& x) {
      return strategy.run([&] { return norm->forward(x) * w.read(); });
    });
    step(torch::rand({4, 2}));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("variable 'backbone.running_"),
                                 HasSubstr("make it inside of strategy.scope()"))));
}

// A function finds the workers through its variables.
TEST(MultiWorker, AFunctionThatCombinesValuesUsesAVariable) {
  const WorkerThreads workers(2);
  const auto errors = workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, kQuick);
    const auto sum = [&](const Tensor& x) {
      return strategy.reduce(ReduceOp::kSum, strategy.run([&] { return x * 2; }));
    };
    EXPECT_EQ(sum(torch::ones({})).item<double>(), 4);
    function("sum", sum)(torch::ones({}));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("function 'sum'"),
                                 HasSubstr("uses no variable of their strategy"))));
}

TEST(MultiWorker, AllWorkersNeedTheSameNumberOfReplicas) {
  const WorkerThreads workers(2);
  const auto errors = workers.run([&](const Cluster& me) {
    MultiWorkerMirroredStrategyOptions options = kQuick;
    if (me.task->index == 1) options.devices = {"/cpu:0", "/cpu:1"};
    MultiWorkerMirroredStrategy(me, options);
  });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("worker 0 has 1 replicas, but worker 1 has 2"),
                                  HasSubstr("worker 1 has 2 replicas, but worker 0 has 1")));
}

}  // namespace
}  // namespace trireme
