// A fit() that is interrupted again and again ends as one that is not, under the default strategy
// and under parameter servers with one worker. tests/fault/fit_kill_test.cc kills real processes.
#include "trireme/model/backup_and_restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <sstream>

#include "trireme/exec/random.h"
#include "trireme/metric/metric.h"
#include "trireme/model/model.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kBackupEpochs = 4;

// A net whose steps need random numbers.
struct DropoutNetImpl : torch::nn::Module {
  DropoutNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    last = register_module("last", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x) { return last(dropout(torch::relu(first(x)))); }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(DropoutNet);

// Throws after a step, as an interruption.
class Interruption : public Callback {
 public:
  explicit Interruption(int64_t step) : step_(step) {}
  void on_batch_end(Fit& fit, const Logs&) override {
    if (fit.step() >= step_) throw Error(ErrorCode::kCancelled, "interrupted by the test");
  }

 private:
  int64_t step_;
};

// Halves the rate after an epoch that is not the best so far. Its decisions follow from its state.
class HalvedRate : public Callback {
 public:
  void on_epoch_end(Fit& fit, Logs& logs) override {
    if (logs["val_loss"] < best_) {
      best_ = logs["val_loss"];
    } else {
      fit.set_lr(fit.lr() / 2);
    }
    best_ *= 0.35;  // so that some epochs are not
    logs.set("lr", fit.lr());
  }
  std::string save() const override {
    std::string bytes(sizeof best_, '\0');
    std::memcpy(bytes.data(), &best_, sizeof best_);
    std::string text;
    for (const char byte : bytes) text += std::to_string(static_cast<unsigned char>(byte)) + " ";
    return text;
  }
  void restore(const std::string& state) override {
    std::istringstream numbers(state);
    unsigned char bytes[sizeof best_];
    for (unsigned char& byte : bytes) {
      int number = 0;
      numbers >> number;
      byte = static_cast<unsigned char>(number);
    }
    std::memcpy(&best_, bytes, sizeof best_);
  }

 private:
  double best_ = std::numeric_limits<double>::infinity();
};

// The weights and the history at the end of a fit().
struct FitResult {
  std::vector<Tensor> weights;
  std::string history;
};

// Makes a model and trains it. Returns nullopt if it was interrupted.
std::optional<FitResult> run_with_backup(const Strategy& strategy, const std::string& folder,
                                         BackupAndRestoreOptions options, int64_t interrupted_at,
                                         uint64_t seed = 1) {
  torch::manual_seed(seed);
  set_seed(7);
  const auto generator = at::detail::createCPUGenerator(5);
  const Tensor x = torch::rand({50, 4}, generator), y = x.sum(1, true);
  Model model(DropoutNet(), strategy);
  model.compile({.optimizer = Adam({.lr = 0.02}),
                 .loss = torch::nn::MSELoss(),
                 .metrics = {MeanAbsoluteError()},
                 // Closures that a worker gets at the same time may run in another order.
                 .steps_per_execution = strategy.name() == "ps" ? 7 : 2});
  // Under parameter servers, workers take the examples of tensors in any order.
  const bool on_servers = strategy.name() == "ps";
  DataSource data = std::pair(x, y);
  if (on_servers) data = Dataset::from_tensors({x, y}).shuffle(50).repeat().batch(8);
  try {
    const History history =
        model.fit(data, {.batch_size = 8,
                         .epochs = kBackupEpochs,
                         .steps_per_epoch = on_servers ? std::optional<int64_t>(7) : std::nullopt,
                         .validation = std::pair(x, y),
                         .callbacks = {HalvedRate(), Interruption(interrupted_at),
                                       BackupAndRestore(folder, options)},
                         .verbose = Verbose::kSilent});
    FitResult result{.history = history.to_json()};
    for (const Variable& variable : track(model.net())) {
      result.weights.push_back(variable.read().detach().clone());
    }
    return result;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("interrupted by the test"));
    return std::nullopt;
  }
}

void expect_same(const FitResult& result, const FitResult& expected) {
  EXPECT_EQ(result.history, expected.history);
  ASSERT_EQ(result.weights.size(), expected.weights.size());
  for (size_t i = 0; i < result.weights.size(); ++i) {
    const Tensor a = result.weights[i].contiguous(), b = expected.weights[i].contiguous();
    ASSERT_EQ(a.nbytes(), b.nbytes());
    EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << i;
  }
}

class BackupTest : public testing::TestWithParam<const char*> {
 protected:
  ~BackupTest() override { set_seed(0); }

  // Runs a part of a program with a cluster of its own.
  std::optional<FitResult> run(const std::string& name, BackupAndRestoreOptions options,
                               int64_t interrupted_at = kNever, uint64_t seed = 1) {
    std::optional<InProcessTestCluster> cluster;
    if (std::string(GetParam()) == "ps") cluster.emplace(TestClusterOptions{.workers = 1, .ps = 1});
    return run_with_backup(
        make_strategy(cluster ? Cluster(cluster->spec()) : Cluster(), GetParam()), path(name),
        options, interrupted_at, seed);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Strategies, BackupTest, testing::Values("default", "ps"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(BackupTest, AFitThatIsInterruptedEndsAsOneThatIsNot) {
  const auto expected = run("whole", {});
  ASSERT_TRUE(expected);
  EXPECT_THAT(expected->history, HasSubstr("lr"));
  for (const int64_t save_freq : {0, 3}) {
    SCOPED_TRACE(save_freq);
    const std::string name = "interrupted-" + std::to_string(save_freq);
    const BackupAndRestoreOptions options{.save_freq = save_freq};
    uint64_t seed = 1;  // of the weights; counts only until the first checkpoint
    for (const int64_t step : {3, 9, 15, 26}) {
      EXPECT_FALSE(run(name, options, step, seed));
      if (std::filesystem::exists(path(name))) seed = 2;
    }
    const auto result = run(name, options, kNever, seed);
    ASSERT_TRUE(result);
    expect_same(*result, *expected);
    // Started again, it finds what was trained, and its first step would interrupt it.
    const auto again = run(name, options, /*interrupted_at=*/0, /*seed=*/3);
    ASSERT_TRUE(again);
    expect_same(*again, *expected);
  }
}

TEST_P(BackupTest, KeepsTheNewestAndSaysWhenTheFitHasEnded) {
  EXPECT_FALSE(run("kept", {}, 26));
  const auto names = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path("kept"))) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  EXPECT_THAT(names(), ElementsAre("step-0000000014", "step-0000000021"));
  EXPECT_TRUE(run("kept", {}));
  EXPECT_THAT(names(), ElementsAre("ended", "step-0000000021", "step-0000000028"));
  EXPECT_TRUE(run("kept", {.delete_at_end = true}));
  EXPECT_THAT(names(), ElementsAre("ended"));
  EXPECT_FALSE(run("kept", {}, 9));  // trains again
  // With one worker in a cluster, there is a checkpoint from the beginning.
  std::vector<std::string> expected = {"step-0000000007"};
  if (std::string(GetParam()) == "ps") expected.insert(expected.begin(), "step-0000000000");
  EXPECT_EQ(names(), expected);
}

// Trains a line for at most 9 epochs of 2 steps. The callbacks come before BackupAndRestore.
History fit_line(const std::string& folder, std::vector<AnyCallback> callbacks, int64_t outputs = 1,
                 Loss loss = torch::nn::MSELoss()) {
  Model model(torch::nn::Linear(2, outputs));
  model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = std::move(loss)});
  callbacks.push_back(BackupAndRestore(folder));
  const Tensor x = torch::ones({8, 2}), y = torch::ones({8, outputs});
  return model.fit(x, y,
                   {.batch_size = 4,
                    .epochs = 9,
                    .validation = std::pair(x, y),
                    .callbacks = callbacks,
                    .verbose = Verbose::kSilent});
}

TEST(BackupAndRestore, AFitThatWasStoppedStaysStopped) {
  const TemporaryFolder folder;
  int epochs = 0;
  const auto stop_in_third = on_epoch_end([&](Fit& fit, const Logs&) {
    ++epochs;
    if (fit.epoch() == 2) fit.stop();
  });
  EXPECT_THAT(fit_line(folder.path(), {stop_in_third}).epochs(), ElementsAre(0, 1, 2));
  EXPECT_THAT(fit_line(folder.path(), {stop_in_third}).epochs(), ElementsAre(0, 1, 2));
  EXPECT_EQ(epochs, 3);
}

TEST(BackupAndRestore, SaysWhatDiffersFromTheCheckpoint) {
  const TemporaryFolder folder;
  const auto stop = on_epoch_end([&](Fit& fit, const Logs&) { fit.stop(); });
  fit_line(folder.path(), {stop});
  const std::string other_net = error_text([&] { fit_line(folder.path(), {stop}, 3); });
  EXPECT_THAT(other_net, HasSubstr("fit() cannot continue from its checkpoint"));
  EXPECT_THAT(other_net,
              HasSubstr("'weight' is float32[3, 2], and float32[1, 2] in the checkpoint"));
  EXPECT_THAT(other_net, HasSubstr("give BackupAndRestore another folder"));
  EXPECT_THAT(error_text([&] { fit_line(folder.path(), {}); }),
              HasSubstr("of a fit() with 2 callbacks, but this one has 1"));
  EXPECT_THAT(error_text([] { BackupAndRestore(""); }), HasSubstr("needs a folder"));
}

TEST(BackupAndRestore, SigtermAtAnyMomentSavesAndExitsWith143) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The process of a death test begins this test anew, and must use the same folder.
  const TemporaryFolder own;
  setenv("TRIREME_BACKUP_TEST", own.path().c_str(), /*overwrite=*/0);
  const std::string folder = std::getenv("TRIREME_BACKUP_TEST");
  const Loss at_capture = [](const Tensor& output, const Tensor& target) {
    static const int once = raise(SIGTERM);
    EXPECT_EQ(once, 0);
    return (output - target).square().mean(1);
  };
  EXPECT_EXIT(fit_line(folder + "/capture", {}, 1, at_capture), testing::ExitedWithCode(143),
              "fit\\(\\) has saved step 1 .* exits with code 143");
  struct AtValidation : Callback {
    void on_validation_begin(Fit&) override { raise(SIGTERM); }
  };
  EXPECT_EXIT(fit_line(folder + "/validation", {AtValidation()}), testing::ExitedWithCode(143),
              "fit\\(\\) has saved step 2 ");
  const auto twice = on_epoch_end([](Fit&, const Logs&) {
    raise(SIGTERM);
    raise(SIGTERM);
  });
  EXPECT_EXIT(fit_line(folder + "/twice", {twice}), testing::KilledBySignal(SIGTERM), "");
  unsetenv("TRIREME_BACKUP_TEST");
  EXPECT_THAT(fit_line(folder + "/capture", {}).epochs().size(), 9u);
  EXPECT_TRUE(std::filesystem::exists(folder + "/validation/step-0000000002"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/twice/step-0000000002"));
  // Afterwards the signal has its default action again.
  struct sigaction action = {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace trireme
