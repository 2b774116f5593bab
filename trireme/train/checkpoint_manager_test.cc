// Tests of CheckpointManager without a cluster.
#include "trireme/train/checkpoint_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset.h"
#include "trireme/exec/random.h"
#include "trireme/function/function.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/wait_until.h"
#include "trireme/train/held_files.h"

namespace trireme {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

bool bitwise_equal(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(),
                     a.nbytes()) == 0;
}

// A program that trains a net with dropout on shuffled data.
struct Training {
  explicit Training(const std::string& folder, CheckpointOptions options = {})
      : manager(folder, {net, optimizer, batches, steps}, options) {}

  static Dataset dataset() {
    const auto generator = at::detail::createCPUGenerator(5);
    const Tensor x = torch::rand({100, 4}, generator);
    return Dataset::from_tensors({x, x.sum(1, true)}).shuffle(100).repeat().batch(7);
  }
  Tensor run() { return step(batches); }
  std::vector<Tensor> state() const {
    std::vector<Tensor> tensors{steps.read().clone()};
    for (const Variable& variable : optimizer.variables()) {
      tensors.push_back(variable.read().detach().clone());
    }
    for (const Variable& variable : optimizer.state()) {
      tensors.push_back(variable.read().clone());
    }
    return tensors;
  }

  torch::nn::Sequential net{torch::nn::Linear(4, 8), torch::nn::Dropout(0.5),
                            torch::nn::Linear(8, 1)};
  Adam optimizer{net, {.lr = 0.01}};
  Iterator batches = dataset().iterator({.seed = 3});
  Variable steps{"steps", torch::zeros({}, torch::kLong), {.trainable = false}};
  Function<Tensor(Iterator&)> step =
      function("train", std::function<Tensor(Iterator&)>([this](Iterator& data) {
                 const auto [x, y] = data.next<2>();
                 const Tensor loss = torch::mse_loss(net->forward(x), y);
                 optimizer.minimize(loss);
                 steps.assign_add(torch::ones({}, torch::kLong));
                 return loss;
               }));
  CheckpointManager manager;
};

class CheckpointManagerTest : public testing::Test {
 protected:
  ~CheckpointManagerTest() override { set_seed(0); }

  const std::string& path() const { return folder_.path(); }
  std::vector<std::string> names(const CheckpointManager& manager) const {
    std::vector<std::string> names;
    for (const std::string& path : manager.checkpoints()) {
      names.push_back(std::filesystem::path(path).filename());
    }
    return names;
  }
  void damage(const std::string& file) const {
    std::fstream stream(path() + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(stream.good());
    stream.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(stream.peek() ^ 1);
    stream.seekp(-1, std::ios::end);
    stream.put(byte);
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointManagerTest, TrainingContinuesExactlyAsWithoutAnInterruption) {
  const auto begin = [&] {
    torch::manual_seed(1);
    set_seed(9);
    auto training = std::make_unique<Training>(path());
    training->optimizer.set_lr(0.02);
    return training;
  };
  std::vector<Tensor> losses, state;
  {
    const auto whole = begin();
    for (int i = 0; i < 137; ++i) losses.push_back(whole->run());
    state = whole->state();
  }
  {
    const auto first = begin();
    for (int i = 0; i < 37; ++i) first->run();  // in the middle of an epoch
    EXPECT_TRUE(first->manager.save(37));
    first->run();  // is not in the checkpoint
    first->manager.wait();
  }
  torch::manual_seed(2);
  Training second(path());
  set_seed(0);
  EXPECT_EQ(second.manager.restore_or_initialize(), 37);
  EXPECT_EQ(second.step.step(), 37u);
  EXPECT_EQ(second.optimizer.lr(), 0.02);
  EXPECT_EQ(current_seed(), 9u);
  for (int i = 37; i < 137; ++i) {
    ASSERT_TRUE(bitwise_equal(second.run(), losses[i])) << "step " << i;
  }
  const std::vector<Tensor> restored = second.state();
  ASSERT_EQ(restored.size(), state.size());
  for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(bitwise_equal(restored[i], state[i])) << i;
}

TEST_F(CheckpointManagerTest, WithoutACheckpointNothingChanges) {
  Training training(path() + "/new");
  training.run();
  const std::vector<Tensor> before = training.state();
  EXPECT_EQ(training.manager.restore_or_initialize(), 0);
  EXPECT_EQ(training.manager.latest(), std::nullopt);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(bitwise_equal(training.state()[i], before[i]));
  }
}

TEST_F(CheckpointManagerTest, SavesIteratorsAlone) {
  Iterator numbers = Dataset::range(10).iterator();
  numbers.next();
  CheckpointManager manager(path(), {numbers});
  manager.save(1);
  manager.wait();
  numbers.next();
  EXPECT_EQ(manager.restore_or_initialize(), 1);
  EXPECT_EQ(numbers.next().item<int64_t>(), 1);
}

TEST_F(CheckpointManagerTest, FunctionsMadeAfterTheRestoreContinueTheirCount) {
  const Variable v("v", torch::zeros({}));
  const auto make = [] {
    return function("noise", [](const Tensor& x) { return x + torch::rand({3}); });
  };
  const Tensor x = torch::zeros({3});
  {
    auto noise = make();
    for (int i = 0; i < 5; ++i) noise(x);
    CheckpointManager(path(), {v}).save(5);
  }
  CheckpointManager manager(path(), {v});
  EXPECT_EQ(manager.restore_or_initialize(), 5);
  EXPECT_EQ(make().step(), 5u);
  EXPECT_EQ(make().step(), 0u);
}

TEST_F(CheckpointManagerTest, ListsAllDifferencesAtOnce) {
  {
    const Variable kept("kept", torch::zeros({2}));
    const Variable gone("gone", torch::zeros({2}));
    const Variable shape("shape", torch::zeros({2, 3}));
    const Variable dtype("dtype", torch::zeros({2}));
    const Variable trained("trained", torch::zeros({2}));
    const Adam adam({trained}, {});
    CheckpointManager manager(path(), {kept, gone, shape, dtype, adam, Dataset::range(5).iterator(),
                                       Dataset::range(6).iterator()});
    manager.save(1);
  }
  const Variable kept("kept", torch::ones({2}));
  const Variable added("added", torch::zeros({2}));
  const Variable shape("shape", torch::zeros({3, 2}));
  const Variable dtype("dtype", torch::zeros({2}, torch::kDouble));
  const Variable trained("trained", torch::ones({2}));
  const Sgd sgd({trained}, {.momentum = 0.9});
  CheckpointManager manager(path(), {kept, added, shape, dtype, sgd, Dataset::range(7).iterator()});
  const Error error = error_of([&] { manager.restore_or_initialize(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  for (const char* part :
       {"'added' is not in the checkpoint", "'gone' of the checkpoint is not among the objects",
        "'shape' is float32[3, 2], and float32[2, 3] in the checkpoint",
        "'dtype' is float64[2], and float32[2] in the checkpoint",
        "the optimizer of variable 'trained' is 'sgd'", "iterator_0 is over range(0, 7)",
        "iterator_1 of the checkpoint", "partial"}) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
  EXPECT_EQ(kept.read().sum().item<float>(), 2);  // nothing has changed

  EXPECT_EQ(manager.restore("step-0000000001", {.partial = true}), 1);
  EXPECT_EQ(kept.read().sum().item<float>(), 0);
  EXPECT_EQ(trained.read().sum().item<float>(), 0);
}

TEST_F(CheckpointManagerTest, PatternsSelectVariables) {
  const Variable a("encoder.a", torch::zeros({})), b("encoder.b", torch::zeros({}));
  const Variable c("head", torch::zeros({}));
  set_seed(4);
  CheckpointManager manager(path(), {a, b, c});
  manager.save(1);
  manager.wait();
  for (const Variable& variable : {a, b, c}) variable.assign(torch::ones({}));
  set_seed(5);
  EXPECT_EQ(manager.restore(*manager.latest(), {.patterns = {"encoder.*"}}), 1);
  EXPECT_EQ(a.read().item<float>(), 0);
  EXPECT_EQ(b.read().item<float>(), 0);
  EXPECT_EQ(c.read().item<float>(), 1);
  EXPECT_EQ(current_seed(), 5u);
  EXPECT_EQ(error_of([&] { manager.restore(*manager.latest(), {.patterns = {"x*"}}); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(CheckpointManagerTest, KeepsTheNewestAndTheBest) {
  const Variable v("v", torch::zeros({}));
  {
    CheckpointManager manager(path(), {v}, {.keep = 2, .keep_best = true});
    const double losses[] = {3, 1, 2, 4, 5};
    for (int i = 0; i < 5; ++i) manager.save(i + 1, losses[i]);
    manager.wait();
    EXPECT_THAT(names(manager),
                ElementsAre("step-0000000005", "step-0000000004", "step-0000000002"));
  }
  // Another manager reads the metrics from the folder.
  CheckpointManager manager(path(), {v}, {.keep = 1, .keep_best = true, .higher_is_better = true});
  manager.save(6);
  manager.wait();
  EXPECT_THAT(names(manager), ElementsAre("step-0000000006", "step-0000000005"));
}

TEST_F(CheckpointManagerTest, ADamagedCheckpointDoesNotCountAmongThoseThatAreKept) {
  const Variable v("v", torch::zeros({}));
  {
    CheckpointManager manager(path(), {v}, {.keep = 2});
    manager.save(1);
    manager.save(9);
    manager.wait();
  }
  damage("step-0000000009/program.safetensors");
  CheckpointManager manager(path(), {v}, {.keep = 1});
  testing::internal::CaptureStderr();
  EXPECT_EQ(manager.restore_or_initialize(), 1);
  testing::internal::GetCapturedStderr();
  manager.save(2);
  manager.wait();
  EXPECT_THAT(names(manager), ElementsAre("step-0000000002"));
}

TEST_F(CheckpointManagerTest, AfterAReturnToAnEarlierStepTheNextCheckpointIsKept) {
  const Variable v("v", torch::zeros({}));
  CheckpointManager manager(path(), {v}, {.keep = 2});
  manager.save(8);
  manager.save(9);
  manager.wait();
  manager.restore("step-0000000008");
  manager.save(1);
  manager.wait();
  EXPECT_THAT(names(manager), ElementsAre("step-0000000009", "step-0000000008", "step-0000000001"));
}

TEST_F(CheckpointManagerTest, ADamagedCheckpointIsSkippedWithAWarningThatNamesTheTensor) {
  const Variable v("v", torch::zeros({1000}));
  CheckpointManager manager(path(), {v});
  manager.save(1);
  v.assign(torch::ones({1000}));
  manager.save(2);
  manager.wait();
  v.assign(torch::full({1000}, 2));
  damage("step-0000000002/program.safetensors");

  const Error error = error_of([&] { manager.restore("step-0000000002"); });
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_EQ(v.read().sum().item<float>(), 2000);

  testing::internal::CaptureStderr();
  EXPECT_EQ(manager.restore_or_initialize(), 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("step-0000000002'"));
  EXPECT_THAT(log, HasSubstr("'program.safetensors'"));
  EXPECT_THAT(log, HasSubstr("'v'"));
  EXPECT_EQ(v.read().sum().item<float>(), 0);

  manager.save(2);  // replaces the damaged one
  manager.wait();
  EXPECT_EQ(manager.restore_or_initialize(), 2);

  damage("step-0000000001/manifest.json");
  damage("step-0000000002/program.safetensors");
  testing::internal::CaptureStderr();
  const Error all = error_of([&] { manager.restore_or_initialize(); });
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(all.code(), ErrorCode::kDataLoss);
  EXPECT_THAT(all.what(), HasSubstr("all 2 checkpoints"));
}

TEST_F(CheckpointManagerTest, ACheckpointThatCannotBeReadIsSkippedAndKept) {
  const Variable v("v", torch::zeros({1000}));
  HeldFiles files;
  const auto manager = internal::Access<CheckpointManager>::make(path(), {v}, {}, files);
  for (int step = 1; step <= 2; ++step) {
    v.assign(torch::full({1000}, step));
    manager->save(step);
  }
  manager->wait();
  files.fail_reads("step-0000000002/program");
  EXPECT_EQ(error_of([&] { manager->restore("step-0000000002"); }).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error_of([&] { manager->save(2); }).code(), ErrorCode::kAlreadyExists);
  testing::internal::CaptureStderr();
  EXPECT_EQ(manager->restore_or_initialize(), 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("step-0000000002/program.safetensors'"));
  EXPECT_EQ(v.read().sum().item<float>(), 1000);
  manager->save(3);
  manager->wait();
  // The checkpoint is still there when the disk answers again.
  EXPECT_THAT(names(*manager),
              ElementsAre("step-0000000003", "step-0000000002", "step-0000000001"));
  files.fail_reads("");
  EXPECT_EQ(manager->restore("step-0000000002"), 2);
  EXPECT_EQ(v.read().sum().item<float>(), 2000);

  files.fail_reads("step-0000000003/manifest");
  testing::internal::CaptureStderr();
  EXPECT_EQ(manager->restore_or_initialize(), 2);
  testing::internal::GetCapturedStderr();
  manager->save(3);  // the training comes to this step again
  manager->wait();
  files.fail_reads("");
  EXPECT_EQ(manager->restore_or_initialize(), 3);
  EXPECT_EQ(v.read().sum().item<float>(), 2000);

  files.fail_reads("step-");
  testing::internal::CaptureStderr();
  const Error error = error_of([&] { manager->restore_or_initialize(); });
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("none of the 3 checkpoints"));
}

TEST_F(CheckpointManagerTest, AnErrorInTheBackgroundIsThrownAtTheNextSaveAndByWait) {
  const Variable v("v", torch::zeros({}));
  HeldFiles files;
  const auto manager = internal::Access<CheckpointManager>::make(path(), {v}, {}, files);
  manager->save(1);
  manager->wait();
  files.fail(true);
  EXPECT_TRUE(manager->save(2));
  EXPECT_EQ(error_of([&] { manager->wait(); }).code(), ErrorCode::kResourceExhausted);
  manager->wait();  // it was thrown
  EXPECT_TRUE(manager->save(3));
  EXPECT_EQ(error_of([&] { manager->save(4); }).code(), ErrorCode::kResourceExhausted);
  files.fail(false);
  EXPECT_TRUE(manager->save(2));
  manager->wait();
  EXPECT_THAT(names(*manager), ElementsAre("step-0000000002", "step-0000000001"));
  // The folders of the saves that failed are gone.
  EXPECT_FALSE(std::filesystem::exists(path() + "/step-0000000003"));
}

TEST_F(CheckpointManagerTest, TheDestructorLogsTheErrorOfTheLastSave) {
  const Variable v("v", torch::zeros({}));
  HeldFiles files;
  auto manager = internal::Access<CheckpointManager>::make(path(), {v}, {}, files);
  files.fail(true);
  manager->save(1);
  testing::internal::CaptureStderr();
  manager.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the disk is full"));
}

TEST_F(CheckpointManagerTest, ASaveWhileAnotherIsWrittenWaitsOrIsSkipped) {
  const Variable v("v", torch::zeros({}));
  HeldFiles files;
  {
    const auto manager = internal::Access<CheckpointManager>::make(
        path(), {v}, {.when_busy = WhenBusy::kSkip}, files);
    files.hold(true);
    EXPECT_TRUE(manager->save(1));
    EXPECT_FALSE(manager->save(2));
    files.hold(false);
    manager->wait();
    EXPECT_THAT(names(*manager), ElementsAre("step-0000000001"));
  }
  const auto manager = internal::Access<CheckpointManager>::make(path(), {v}, {}, files);
  files.hold(true);
  EXPECT_TRUE(manager->save(3));
  v.assign(torch::ones({}));  // training goes on, and the checkpoint has the state of the cut
  std::thread second([&] { EXPECT_TRUE(manager->save(4)); });
  files.hold(false);
  second.join();
  manager->wait();
  EXPECT_THAT(names(*manager),
              ElementsAre("step-0000000004", "step-0000000003", "step-0000000001"));
  manager->restore("step-0000000003");
  EXPECT_EQ(v.read().item<float>(), 0);
}

TEST_F(CheckpointManagerTest, SavesEveryNStepsOrSeconds) {
  const Variable v("v", torch::zeros({}));
  {
    CheckpointManager manager(path(), {v}, {.keep = 0, .every_steps = 3});
    for (int i = 1; i <= 7; ++i) EXPECT_EQ(manager.save_if_due(i), i % 3 == 0) << i;
    manager.wait();
    EXPECT_THAT(names(manager), ElementsAre("step-0000000006", "step-0000000003"));
    EXPECT_EQ(error_of([&] { manager.save(6); }).code(), ErrorCode::kAlreadyExists);
  }
  CheckpointManager manager(path(), {v}, {.keep = 0, .every_steps = 3});
  manager.restore_or_initialize();
  EXPECT_FALSE(manager.save_if_due(8));
  EXPECT_TRUE(manager.save_if_due(9));
  CheckpointManager timed(path() + "/timed", {v}, {.every = seconds(1)});
  EXPECT_FALSE(timed.save_if_due(1));
  EXPECT_TRUE(wait_until([&] { return timed.save_if_due(2); }, seconds(20)));
}

volatile sig_atomic_t own_handler_calls = 0;

TEST_F(CheckpointManagerTest, SigtermSavesAndCallsTheHandlerOfTheProgram) {
  struct sigaction own = {}, before = {}, after = {};
  own.sa_handler = [](int) { own_handler_calls = own_handler_calls + 1; };
  sigaction(SIGTERM, &own, &before);
  own_handler_calls = 0;
  const Variable v("v", torch::zeros({}));
  {
    CheckpointManager manager(path(), {v}, {.every_steps = 1000, .save_on_sigterm = true});
    EXPECT_FALSE(manager.save_if_due(1));
    EXPECT_FALSE(manager.interrupted());
    raise(SIGTERM);
    EXPECT_EQ(own_handler_calls, 1);
    EXPECT_FALSE(manager.interrupted());
    EXPECT_TRUE(manager.save_if_due(2));
    EXPECT_TRUE(manager.interrupted());
    EXPECT_THAT(names(manager), ElementsAre("step-0000000002"));
    EXPECT_FALSE(manager.save_if_due(3));
  }
  sigaction(SIGTERM, &before, &after);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
}

TEST_F(CheckpointManagerTest, SigtermDoesNotEndAProgramThatSaves) {
  const Variable v("v", torch::zeros({}));
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ignore_two = [&] {
    CheckpointManager manager(path(), {v}, {.save_on_sigterm = true});
    raise(SIGTERM);
    raise(SIGTERM);  // nobody calls save_if_due()
  };
  EXPECT_EXIT(ignore_two(), testing::KilledBySignal(SIGTERM), "");
  CheckpointManager manager(path(), {v}, {.save_on_sigterm = true});
  raise(SIGTERM);
  EXPECT_TRUE(manager.save_if_due(1));
}

TEST_F(CheckpointManagerTest, RejectsObjectsThatCannotBeSavedTogether) {
  const Variable v("v", torch::zeros({}));
  const Adam one({v}, {});
  const Sgd two({v}, {});
  EXPECT_THAT(error_text([&] {
                CheckpointManager(path(), {one, two});
              }),
              HasSubstr("'v' has two optimizers"));
  EXPECT_THAT(error_text([&] { CheckpointManager(path(), {}); }), HasSubstr("nothing to save"));
  EXPECT_THAT(error_text([&] { CheckpointManager(path(), {Adam()}); }), HasSubstr("recipe"));
  CheckpointManager manager(path(), {v});
  EXPECT_EQ(error_of([&] { manager.save(-1); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { manager.save(1, NAN); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { manager.restore("step-0000000009"); }).code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trireme
