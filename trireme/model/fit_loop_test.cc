// Parts of fit() that have no difference between strategies, under the default strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>

#include "trireme/capture/eager_mode.h"
#include "trireme/model/fit_state.h"
#include "trireme/model/model.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::ElementsAre;
using torch::Tensor;

FitOptions quiet(FitOptions options) {
  options.verbose = Verbose::kSilent;
  return options;
}

// Records the calls of hooks.
class Recorder final : public Callback {
 public:
  explicit Recorder(std::vector<std::string>& calls) : calls_(calls) {}
  void on_train_begin(Fit&) override { calls_.push_back("train begin"); }
  void on_train_end(Fit&, const Logs&) override { calls_.push_back("train end"); }
  void on_epoch_begin(Fit& fit) override { add("epoch begin", fit.epoch()); }
  void on_epoch_end(Fit& fit, Logs& logs) override {
    add("epoch end", fit.epoch());
    logs.set("own", 7);
  }
  void on_batch_end(Fit& fit, const Logs&) override { add("batch end", fit.step_of_epoch()); }
  void on_validation_begin(Fit&) override { calls_.push_back("validation begin"); }
  void on_validation_end(Fit&, const Logs& logs) override {
    calls_.push_back(logs.contains("val_loss") ? "validation end" : "no validation");
  }

 private:
  void add(const std::string& call, int64_t number) {
    calls_.push_back(call + " " + std::to_string(number));
  }
  std::vector<std::string>& calls_;
};

TEST(FitLoop, CallsTheHooksInOrder) {
  Model model(nn::Linear(1, 1));
  model.compile({.loss = nn::MSELoss(), .steps_per_execution = 2});
  const Tensor x = torch::ones({6, 1});
  std::vector<std::string> calls;
  const History history = model.fit(x, x,
                                    quiet({.batch_size = 2,
                                           .epochs = 2,
                                           .validation = std::pair(x, x),
                                           .validation_freq = 2,
                                           .callbacks = {std::make_shared<Recorder>(calls)}}));
  EXPECT_THAT(calls, ElementsAre("train begin", "epoch begin 0", "batch end 2", "batch end 3",
                                 "epoch end 0", "epoch begin 1", "batch end 2", "batch end 3",
                                 "validation begin", "validation end", "epoch end 1", "train end"));
  EXPECT_THAT(history["own"], ElementsAre(7, 7));
  EXPECT_EQ(history["val_loss"].size(), 1);
}

TEST(FitLoop, CountsStepsOverCallsOfFit) {
  Model model(nn::Linear(1, 1));
  model.compile({.loss = nn::MSELoss()});
  const Tensor x = torch::ones({6, 1});
  int64_t step = 0, per_epoch = 0;
  const FitOptions options =
      quiet({.batch_size = 4, .callbacks = {on_epoch_end([&](Fit& fit, const Logs&) {
                                step = fit.step();
                                per_epoch = fit.steps_per_epoch();
                              })}});
  model.fit(x, x, options);
  EXPECT_EQ(step, 2);
  model.fit(x, x, options);
  EXPECT_EQ(step, 4);
  EXPECT_EQ(per_epoch, 2);
}

TEST(FitLoop, ShufflesEachEpochAnew) {
  const Tensor x = torch::arange(64, torch::kFloat).reshape({64, 1});
  std::vector<Tensor> seen;
  Model model(nn::Linear(1, 1));
  model.compile(
      {.loss = nn::MSELoss(),
       .train_step = [&](const std::vector<Tensor>& batch) -> std::map<std::string, Tensor> {
         seen.push_back(batch[0].clone());
         return {{"mean", batch[0].mean()}};
       },
       .run_eagerly = true});
  const History history = model.fit(x, x, quiet({.batch_size = 64, .epochs = 2}));
  ASSERT_EQ(seen.size(), 2);
  EXPECT_FALSE(torch::equal(seen[0], seen[1]));
  EXPECT_FALSE(torch::equal(seen[0], x));
  EXPECT_TRUE(torch::equal(std::get<0>(seen[1].sort(0)), x));
  EXPECT_THAT(history["mean"], ElementsAre(31.5, 31.5));
  EXPECT_FALSE(runs_eagerly());
}

TEST(FitLoop, AveragesTheFiguresOfAnOwnStep) {
  Model model(nn::Linear(1, 1));
  const Adam optimizer(model.net(), {.lr = 0.1});
  model.compile(
      {.optimizer = optimizer,
       .steps_per_execution = 4,
       .train_step = [&](const std::vector<Tensor>& batch) -> std::map<std::string, Tensor> {
         const Tensor loss = torch::mse_loss(model.net()->forward(batch[0]), batch[1]);
         optimizer.minimize(loss);
         return {{"loss", loss}, {"first", batch[0].sum()}};
       }});
  const Tensor x = torch::arange(6, torch::kFloat).reshape({6, 1});
  const History history = model.fit(x, x, quiet({.batch_size = 2, .epochs = 30}));
  EXPECT_EQ(history["first"][3], 5);  // 15 over 3 steps
  EXPECT_LT(history["loss"].back(), history["loss"].front());
  EXPECT_THAT(history.names(), ElementsAre("first", "loss"));
}

TEST(FitLoop, LeavesFrozenPartsInEvaluationMode) {
  nn::Sequential net(nn::BatchNorm1d(2), nn::Dropout(0.5), nn::Linear(2, 1));
  Model model(net);
  net->ptr(0)->eval();
  model.compile({.loss = nn::MSELoss()});
  const Tensor x = torch::randn({8, 2}), y = torch::randn({8, 1});
  std::vector<bool> modes;
  model.fit(x, y,
            quiet({.validation = std::pair(x, y),
                   .callbacks = {on_epoch_end([&](Fit&, const Logs&) {
                     modes = {net->ptr(0)->is_training(), net->ptr(1)->is_training()};
                   })}}));
  EXPECT_THAT(modes, ElementsAre(false, true));
  EXPECT_TRUE(torch::equal(model.predict(x), model.predict(x)));  // without dropout
  EXPECT_TRUE(net->is_training());
}

// Keeps checkpoints, and ends the fit() by an exception at a step.
class Backup final : public Callback {
 public:
  Backup(std::string folder, int64_t every, int64_t fails_at)
      : folder_(std::move(folder)), every_(every), fails_at_(fails_at) {}

  void on_train_begin(Fit& fit) override {
    internal::FitState& state = internal::Access<Fit>::state(fit);
    manager_ = std::make_unique<CheckpointManager>(folder_, state.checkpointed());
    saved_ = manager_->restore_or_initialize();
    state.add_save_point({.due = [this, &state](bool) { return state.place().step % every_ == 0; },
                          .save = [this, &state] { save(state.place().step); }});
  }
  void on_batch_end(Fit& fit, const Logs&) override {
    ++batches;
    if (fit.step() == fails_at_) throw Error(ErrorCode::kAborted, "failed on purpose");
  }
  std::string save() const override { return std::to_string(batches); }
  void restore(const std::string& state) override { batches = std::stoi(state); }

  int batches = 0;

 private:
  void save(int64_t step) {
    if (std::exchange(saved_, step) == step) return;
    manager_->save(step);
    manager_->wait();
  }

  const std::string folder_;
  const int64_t every_, fails_at_;
  int64_t saved_ = -1;
  std::unique_ptr<CheckpointManager> manager_;
};

struct Trained {
  Tensor weight;
  History history;
  int batches;
};

// Trains in a program of its own, as far as random numbers are concerned. Fails at a step; 0 for
// none.
Trained train_with_backup(const std::string& folder, int64_t every, int64_t fails_at) {
  torch::manual_seed(3);
  nn::Linear last(4, 1);
  Model model(nn::Sequential(nn::Dropout(0.3), last));
  model.compile({.optimizer = Adam({.lr = cosine_decay({.lr = 0.1, .steps = 40})}),
                 .loss = nn::MSELoss(),
                 .metrics = {MeanAbsoluteError()}});
  const Tensor x = torch::randn({30, 4}), y = torch::randn({30, 1});
  const auto backup = std::make_shared<Backup>(folder, every, fails_at);
  const History history = model.fit(
      x, y, quiet({.batch_size = 4, .epochs = 4, .validation_split = 0.2, .callbacks = {backup}}));
  return {last->weight.detach().clone(), history, backup->batches};
}

class Resumed : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(Resumed, EndsAsIfNothingHadHappened) {
  const auto [every, fails_at] = GetParam();
  const TemporaryFolder undisturbed, interrupted;
  const Trained expected = train_with_backup(undisturbed.path(), 1000, 0);
  EXPECT_THAT(error_text([&] { train_with_backup(interrupted.path(), every, fails_at); }),
              testing::HasSubstr("failed on purpose"));
  const Trained resumed = train_with_backup(interrupted.path(), every, 0);
  EXPECT_TRUE(torch::equal(resumed.weight, expected.weight));
  EXPECT_EQ(resumed.history.to_json(), expected.history.to_json());
  EXPECT_EQ(resumed.batches, expected.batches);
}

// Epochs have 6 steps: failures in the midst of an epoch, at its end, and after a save at its end.
INSTANTIATE_TEST_SUITE_P(Steps, Resumed,
                         testing::Values(std::pair(5, 8), std::pair(3, 6), std::pair(6, 7),
                                         std::pair(4, 13), std::pair(1, 12)));

}  // namespace
}  // namespace trireme
