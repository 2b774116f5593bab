// Tests of CheckpointManager with variables on parameter servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/exec/random.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {
namespace {

using internal::CheckpointReader;
using std::chrono::seconds;
using testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(),
                     a.nbytes()) == 0;
}

Dataset shuffled_batches() {
  const auto generator = at::detail::createCPUGenerator(5);
  const Tensor x = torch::rand({100, 4}, generator);
  return Dataset::from_tensors({x, x.sum(1, true)}).shuffle(100).repeat().batch(7);
}

nn::Sequential make_net() {
  return nn::Sequential(nn::Linear(4, 16), nn::Dropout(0.5), nn::Linear(16, 1));
}

struct ClusterTrainingOptions {
  int servers = 1;
  int workers = 1;
  int shards = 0;  // Number of shards of each variable; 0 for as many as servers.
  SaveMode mode = SaveMode::kCopy;
};

// A program that trains a net with dropout on shuffled data, with a cluster of its own.
class ClusterTraining {
 public:
  ClusterTraining(const std::string& folder, const ClusterTrainingOptions& options)
      : cluster_({.workers = options.workers, .ps = options.servers}),
        strategy_(Cluster(cluster_.spec()),
                  {.partitioner =
                       FixedPartitioner(options.shards > 0 ? options.shards : options.servers)}),
        net_(strategy_.distribute<nn::Sequential>(nn::Linear(4, 16), nn::Dropout(0.5),
                                                  nn::Linear(16, 1))),
        optimizer_(net_, {.lr = 0.01}),
        steps_([&] {
          const auto scope = strategy_.scope();
          return Variable("steps", torch::zeros({}, torch::kLong), {.trainable = false});
        }()),
        coordinator_(strategy_),
        data_(coordinator_.create_per_worker_dataset(shuffled_batches())),
        manager_(folder, {net_, optimizer_, data_, steps_}, {.mode = options.mode}) {}

  Tensor run() { return ClusterCoordinator::fetch(coordinator_.schedule(step_, data_.iterator())); }
  CheckpointManager& manager() { return manager_; }
  Optimizer& optimizer() { return optimizer_; }
  int64_t steps() const { return steps_.read().item<int64_t>(); }
  // Saves now and returns a reader of the checkpoint.
  std::unique_ptr<CheckpointReader> save(int64_t step) {
    coordinator_.join();
    manager_.save(step);
    manager_.wait();
    return value_or_throw(CheckpointReader::open(Files::local(), *manager_.latest()));
  }

 private:
  InProcessTestCluster cluster_;
  ParameterServerStrategy strategy_;
  nn::Sequential net_;
  Adam optimizer_;
  Variable steps_;
  Function<Tensor(Iterator&)> step_ =
      function("train", std::function<Tensor(Iterator&)>([this](Iterator& data) {
                 const auto [x, y] = data.next<2>();
                 const Tensor loss = torch::mse_loss(net_->forward(x), y);
                 optimizer_.minimize(loss);
                 steps_.assign_add(torch::ones({}, torch::kLong));
                 return loss;
               }));
  ClusterCoordinator coordinator_;
  PerWorkerDataset data_;
  CheckpointManager manager_;
};

// Compares the variables with their slots and steps, wherever the two checkpoints have them.
void expect_same_state(const CheckpointReader& a, const CheckpointReader& b) {
  std::map<std::string, const internal::SavedVariable*> other;
  for (const auto& variable : b.manifest().variables) other[variable.name] = &variable;
  ASSERT_EQ(a.manifest().variables.size(), other.size());
  for (const auto& variable : a.manifest().variables) {
    const auto* twin = other[variable.name];
    ASSERT_NE(twin, nullptr) << variable.name;
    EXPECT_TRUE(same_bytes(value_or_throw(a.read(variable)), value_or_throw(b.read(*twin))))
        << variable.name;
    EXPECT_EQ(variable.options, twin->options);
    ASSERT_EQ(variable.slots, twin->slots);
    for (int i = 0; i < static_cast<int>(variable.slots.size()); ++i) {
      EXPECT_TRUE(same_bytes(value_or_throw(a.read_slot(variable, i)),
                             value_or_throw(b.read_slot(*twin, i))))
          << variable.name << " " << variable.slots[i];
    }
    for (const auto& shard : twin->shards) EXPECT_EQ(shard.step, variable.shards[0].step);
  }
  EXPECT_EQ(a.manifest().seed, b.manifest().seed);
  EXPECT_EQ(a.manifest().functions, b.manifest().functions);
  ASSERT_EQ(a.manifest().iterators.size(), b.manifest().iterators.size());
  for (size_t i = 0; i < a.manifest().iterators.size(); ++i) {
    EXPECT_EQ(a.manifest().iterators[i].positions, b.manifest().iterators[i].positions);
  }
}

class ClusterCheckpointTest : public testing::Test {
 protected:
  ~ClusterCheckpointTest() override { set_seed(0); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  TemporaryFolder folder_;
};

TEST_F(ClusterCheckpointTest, IsRestoredOntoOtherNumbersOfServersBitwise) {
  std::unique_ptr<CheckpointReader> saved;
  {
    set_seed(11);
    ClusterTraining training(path("four"), {.servers = 4});
    training.optimizer().set_lr(0.02);
    for (int i = 0; i < 20; ++i) training.run();
    saved = training.save(20);
    EXPECT_EQ(saved->manifest().files.size(), 4u);
    EXPECT_FALSE(saved->manifest().fences.empty());
  }
  for (const int servers : {1, 3, 5}) {
    set_seed(0);
    ClusterTraining training(path(std::to_string(servers)), {.servers = servers});
    training.run();
    EXPECT_EQ(training.manager().restore(saved->path()), 20);
    EXPECT_EQ(training.optimizer().lr(), 0.02);
    EXPECT_EQ(training.steps(), 20);
    expect_same_state(*saved, *training.save(21));
  }
}

// The servers' kernels round the last elements of a tensor in another way than those before, so a
// training is repeated bit by bit as long as the shards are the same, on any number of servers.
TEST_F(ClusterCheckpointTest, TrainingContinuesExactlyAsWithoutAnInterruption) {
  struct Case {
    int shards;
    std::vector<int> restored_onto;
  };
  for (const Case& test : {Case{1, {1, 3, 5}}, Case{2, {2, 3}}}) {
    const std::string name = std::to_string(test.shards);
    const auto begin = [&](const std::string& folder) {
      torch::manual_seed(1);
      set_seed(9);
      return std::make_unique<ClusterTraining>(
          path(folder), ClusterTrainingOptions{.servers = 2, .shards = test.shards});
    };
    std::vector<Tensor> losses;
    std::unique_ptr<CheckpointReader> whole, part;
    {
      const auto training = begin("whole" + name);
      for (int i = 0; i < 137; ++i) losses.push_back(training->run());
      whole = training->save(137);
    }
    {
      const auto training = begin("part" + name);
      for (int i = 0; i < 37; ++i) training->run();
      part = training->save(37);
      training->run();  // is not in the checkpoint
    }
    for (const int servers : test.restored_onto) {
      SCOPED_TRACE(absl::StrCat(test.shards, " shard(s), ", servers, " server(s)"));
      torch::manual_seed(2);
      ClusterTraining training(path(absl::StrCat("restored", name, servers)),
                               {.servers = servers, .shards = test.shards});
      set_seed(0);
      ASSERT_EQ(training.manager().restore(part->path()), 37);
      for (int i = 37; i < 137; ++i) {
        ASSERT_TRUE(same_bytes(training.run(), losses[i])) << "step " << i;
      }
      expect_same_state(*whole, *training.save(137));
    }
  }
}

TEST_F(ClusterCheckpointTest, StreamedSavesHaveTheStateOfTheCut) {
  ClusterTraining training(path("stream"), {.servers = 2, .mode = SaveMode::kStream});
  for (int i = 0; i < 5; ++i) training.run();
  const auto first = training.save(5);
  training.manager().save(6);
  for (int i = 0; i < 5; ++i) training.run();  // while it is written
  training.manager().wait();
  const auto second =
      value_or_throw(CheckpointReader::open(Files::local(), *training.manager().latest()));
  expect_same_state(*first, *second);
  EXPECT_GT(training.manager().last_save().bytes, 0u);
  EXPECT_GT(training.manager().last_save().stall.count(), 0);
}

TEST_F(ClusterCheckpointTest, MovesIntoASingleProcessAndBack) {
  std::unique_ptr<CheckpointReader> saved, local_saved;
  {
    ClusterTraining training(path("run"), {.servers = 3});
    for (int i = 0; i < 10; ++i) training.run();
    saved = training.save(10);
  }
  {
    nn::Sequential net = make_net();
    Adam optimizer(net, {.lr = 0.5});
    Iterator data = shuffled_batches().iterator();
    const Variable steps("steps", torch::zeros({}, torch::kLong), {.trainable = false});
    auto step = function("train", [&](Iterator& batches) {
      const auto [x, y] = batches.next<2>();
      optimizer.minimize(torch::mse_loss(net->forward(x), y));
      steps.assign_add(torch::ones({}, torch::kLong));
    });
    CheckpointManager manager(path("run"), {net, optimizer, data, steps});
    ASSERT_EQ(manager.restore_or_initialize(), 10);
    EXPECT_EQ(steps.read().item<int64_t>(), 10);
    manager.save(11);
    manager.wait();
    expect_same_state(*saved,
                      *value_or_throw(CheckpointReader::open(Files::local(), *manager.latest())));
    for (int i = 0; i < 5; ++i) step(data);
    manager.save(15);
    manager.wait();
    local_saved = value_or_throw(CheckpointReader::open(Files::local(), *manager.latest()));
  }
  ClusterTraining training(path("run"), {.servers = 2});
  ASSERT_EQ(training.manager().restore_or_initialize(), 15);
  expect_same_state(*local_saved, *training.save(16));
}

TEST_F(ClusterCheckpointTest, RejectsAnotherNumberOfWorkersAndNamesBoth) {
  {
    ClusterTraining training(path("run"), {.workers = 2});
    for (int i = 0; i < 10; ++i) training.run();
    training.save(10);
  }
  ClusterTraining training(path("run"), {.workers = 3});
  const Error error = error_of([&] { training.manager().restore_or_initialize(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("of 2 worker(s) in the checkpoint, and the program has 3"));
  EXPECT_EQ(training.manager().restore("step-0000000010", {.partial = true}), 10);
  EXPECT_EQ(training.steps(), 10);
}

TEST_F(ClusterCheckpointTest, ADamagedServerFileIsSkipped) {
  ClusterTraining training(path("run"), {.servers = 2});
  for (int i = 0; i < 3; ++i) training.run();
  training.save(3);
  training.run();
  const auto newest = training.save(4);
  std::string tensor;
  {
    const auto tensors = internal::tensors_of(newest->manifest());
    tensor = tensors[0].tensor->name;
    std::fstream file(newest->path() + "/" + newest->manifest().files[0].name,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(tensors[0].tensor->offset);
    const char byte = static_cast<char>(file.peek() ^ 1);
    file.seekp(tensors[0].tensor->offset);
    file.put(byte);
  }
  testing::internal::CaptureStderr();
  EXPECT_EQ(training.manager().restore_or_initialize(), 3);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("ps-0-of-2.safetensors"));
  EXPECT_THAT(log, HasSubstr(tensor));
  EXPECT_EQ(training.steps(), 3);
}

// Closures count in two variables on two servers and add the number that they have drawn to a
// third. Whenever a save comes, all three and the positions must agree.
TEST_F(ClusterCheckpointTest, SavesWhileClosuresAreScheduledAreConsistent) {
  InProcessTestCluster cluster({.workers = 2, .ps = 3});
  ParameterServerStrategy strategy{Cluster(cluster.spec())};
  const auto scope = strategy.scope();
  const auto make = [](const char* name) {
    return Variable(name, torch::zeros({}, torch::kLong), {.trainable = false});
  };
  const Variable first = make("first"), second = make("second"), sum = make("sum");
  ClusterCoordinator coordinator(strategy, {.queue_size = 100});
  const auto data = coordinator.create_per_worker_dataset(Dataset::range(1 << 30));
  auto count = function("count", [&](Iterator& numbers) {
    const Tensor number = numbers.next();
    first.assign_add(torch::ones({}, torch::kLong));
    second.assign_add(torch::ones({}, torch::kLong));
    sum.assign_add(number);
  });
  std::atomic<bool> stop = false;
  std::thread scheduler([&] {
    while (!stop) coordinator.schedule(count, data.iterator());
  });
  int64_t last = 0;
  for (int i = 0; i < 8; ++i) {
    const SaveMode mode = i % 2 == 0 ? SaveMode::kCopy : SaveMode::kStream;
    CheckpointManager manager(path("run"), {first, second, sum, data}, {.mode = mode});
    manager.save(i);
    manager.wait();
    const auto reader = value_or_throw(CheckpointReader::open(Files::local(), *manager.latest()));
    std::map<std::string, int64_t> values;
    for (const auto& variable : reader->manifest().variables) {
      values[variable.name] = value_or_throw(reader->read(variable)).item<int64_t>();
    }
    int64_t used = 0, expected = 0;
    for (const auto& position : reader->manifest().iterators.at(0).positions) {
      const auto next = static_cast<int64_t>(position.next);
      used += next - static_cast<int64_t>(position.returned.size());
      expected += next * (next - 1) / 2;
      for (const uint64_t number : position.returned) expected -= static_cast<int64_t>(number);
    }
    EXPECT_EQ(values["first"], used);
    EXPECT_EQ(values["second"], used);
    EXPECT_EQ(values["sum"], expected);
    EXPECT_GE(used, last);
    last = used;
  }
  stop = true;
  scheduler.join();
  coordinator.join(seconds(60));
  EXPECT_GT(last, 0);
}

TEST_F(ClusterCheckpointTest, ContinuesInTheSameProcessAfterAParameterServerWasLost) {
  InProcessTestCluster cluster({.workers = 1, .ps = 2});
  int attempts = 0;
  int64_t total = 0;
  for (bool done = false; !done;) {
    ++attempts;
    try {
      ParameterServerStrategy strategy{Cluster(cluster.spec())};
      const auto scope = strategy.scope();
      const Variable sum("sum", torch::zeros({}, torch::kLong), {.trainable = false});
      const Variable other("other", torch::zeros({}, torch::kLong), {.trainable = false});
      ClusterCoordinator coordinator(strategy);
      const auto data = coordinator.create_per_worker_dataset(Dataset::range(100));
      auto add = function("add", [&](Iterator& numbers) {
        sum.assign_add(numbers.next());
        other.assign_add(torch::ones({}, torch::kLong));
      });
      CheckpointManager manager(path("run"), {sum, other, data}, {.every_steps = 10});
      for (int64_t i = manager.restore_or_initialize(); i < 100; ++i) {
        if (attempts == 1 && i == 35) {
          manager.wait();
          cluster.restart({"ps", 0});
        }
        coordinator.schedule(add, data.iterator());
        coordinator.join(seconds(60));
        manager.save_if_due(i + 1);
      }
      total = sum.read().item<int64_t>();
      EXPECT_EQ(other.read().item<int64_t>(), 100);
      done = true;
    } catch (const PsLost& lost) {
      EXPECT_THAT(lost.what(), HasSubstr("restore_or_initialize"));
      ASSERT_EQ(attempts, 1);
    }
  }
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(total, 99 * 100 / 2);
}

}  // namespace
}  // namespace trireme
