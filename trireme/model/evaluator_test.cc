#include "trireme/model/evaluator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "trireme/model/backup_and_restore.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using torch::Tensor;

// The checkpoints of a fit() of 3 epochs with 2 steps each, and the losses of its validations. The
// evaluator watches another folder, to which the test moves the checkpoints as a training would.
class EvaluatorTest : public testing::Test {
 protected:
  EvaluatorTest() {
    Model model(torch::nn::Linear(2, 1));
    model.compile({.optimizer = Sgd({.lr = 0.1}), .loss = torch::nn::MSELoss()});
    const BackupAndRestore backup(trained(), {.keep = 0});
    losses_ = model.fit(x_, y_,
                        {.batch_size = 4,
                         .epochs = 3,
                         .validation = std::pair(x_, y_),
                         .callbacks = {backup},
                         .verbose = Verbose::kSilent})["val_loss"];
    fs::create_directory(watched());
  }

  std::string trained() const { return folder_.path() + "/trained"; }
  std::string watched() const { return folder_.path() + "/watched"; }
  void move(const std::string& name) { fs::rename(trained() + "/" + name, watched() + "/" + name); }

  TemporaryFolder folder_;
  const Tensor x_ = torch::rand({8, 2}), y_ = x_.sum(1, true);
  std::vector<double> losses_;
};

TEST_F(EvaluatorTest, EvaluatesEachCheckpointUntilTheTrainingHasEnded) {
  Model model(torch::nn::Linear(2, 1));
  model.compile({.loss = torch::nn::MSELoss()});
  move("step-0000000002");
  move("step-0000000004");
  std::vector<int64_t> steps;
  const auto results =
      evaluate_checkpoints(model, watched(), std::pair(x_, y_),
                           {.evaluate = {.batch_size = 4, .verbose = Verbose::kSilent},
                            .on_result =
                                [&](const EvaluatedCheckpoint& result) {
                                  steps.push_back(result.step);
                                  if (result.step == 4) {
                                    move("step-0000000006");
                                    move("ended");
                                  }
                                },
                            .tensorboard = folder_.path() + "/logs",
                            .poll = std::chrono::milliseconds(1)});
  EXPECT_THAT(steps, testing::ElementsAre(2, 4, 6));
  ASSERT_EQ(results.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(results[i].epoch, i + 1);
    EXPECT_EQ(results[i].logs["loss"], losses_[i]);
  }
  EXPECT_GT(fs::file_size(fs::directory_iterator(folder_.path() + "/logs/evaluator")->path()), 300);
}

TEST_F(EvaluatorTest, CheckpointsThatWereRemovedAreLeftOut) {
  Model model(torch::nn::Linear(2, 1));
  model.compile({.loss = torch::nn::MSELoss()});
  for (const char* name : {"step-0000000002", "step-0000000004", "ended"}) move(name);
  // The manifest of a checkpoint is removed first, which may be after the evaluator has seen it.
  fs::remove(watched() + "/step-0000000004/program.safetensors");
  EXPECT_THAT(error_text([&] { evaluate_checkpoints(model, watched(), std::pair(x_, y_)); }),
              HasSubstr("program.safetensors"));
  fs::remove(watched() + "/step-0000000004/manifest.json");
  const auto results = evaluate_checkpoints(model, watched(), std::pair(x_, y_));
  ASSERT_EQ(results.size(), 1u);
  EXPECT_NEAR(results[0].logs["loss"], losses_[0], 1e-6);
}

TEST_F(EvaluatorTest, RejectsAnotherModelAndEndsAtTheTimeout) {
  Model model(torch::nn::Linear(3, 1));
  model.compile({.loss = torch::nn::MSELoss()});
  EXPECT_THAT(error_text([&] {
                evaluate_checkpoints(model, watched(), std::pair(x_, y_),
                                     {.poll = std::chrono::milliseconds(1),
                                      .timeout = std::chrono::milliseconds(5)});
              }),
              HasSubstr("no new checkpoint within 5ms"));
  move("step-0000000002");
  EXPECT_THAT(
      error_text([&] { evaluate_checkpoints(model, watched(), std::pair(x_, y_)); }),
      HasSubstr("not have, or has with another shape or dtype: 'weight'; make the same model"));
}

}  // namespace
}  // namespace trireme
