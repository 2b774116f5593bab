// Common mistakes with models, and the whole messages that they lead to. The list of the mistakes
// that people make most often, and where their messages are tested:
//
//   shape mismatch               ShapesThatForwardDoesNotTake, TargetsThatTheLossDoesNotTake
//   missing steps_per_epoch      ADatasetThatNeverEnds; model_cluster_test.cc, NeedsStepsPerEpoch…
//   batch not divisible          model_cluster_test.cc, RejectABatchThatTheyCannotDivide
//   unknown job                  cluster/cluster_spec_test.cc, NoSuchJob
//   two tasks with one index     cluster/cluster_spec_test.cc, GivenTwice; of processes:
//                                tests/integration/cluster_test.cc, ASecondServerOfATask…
//   torch::optim in a step       TorchOptimInAStep
//   a full disk                  AFullDisk; of a parameter server:
//                                tests/fault/checkpoint_faults_test.cc, AFullDiskFailsTheSave…
//   a lost parameter server      tests/integration/mistakes_test.cc, AParameterServerThatIsLost
//   exhausted data               ExhaustedData; of a worker:
//                                tests/integration/mistakes_test.cc, DataOfAWorkerThatEnds
//   a metric with wrong shapes   AMetricOfOtherShapes
//   compile() forgotten          CompileForgotten
//   a loss that is not a scalar  ALossThatIsNotOneNumberForEachExample
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "trireme/model/backup_and_restore.h"
#include "trireme/model/csv_log.h"
#include "trireme/model/model.h"
#include "trireme/model/model_checkpoint.h"
#include "trireme/model/tensorboard.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/small_disk.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using testing::StartsWith;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

class ModelMistakes : public testing::Test {
 protected:
  // Returns the message of the Error that a call of fit() throws.
  std::string fit_error(const DataSource& data, FitOptions options = {}) {
    options.verbose = Verbose::kSilent;
    return error_text([&] { model_.fit(data, options); });
  }
  // Compiles the model with a loss.
  void compile(Loss loss, CompileOptions options = {}) {
    options.loss = std::move(loss);
    model_.compile(std::move(options));
  }

  const Tensor x_ = torch::randn({8, 3}), y_ = torch::randn({8, 2});
  const Tensors xy_{x_, y_};
  Model<nn::Linear> model_{nn::Linear(3, 2)};
};

TEST_F(ModelMistakes, CompileForgotten) {
  EXPECT_EQ(fit_error(xy_),
            "fit(): the model is not compiled; call compile() with an optimizer and a loss first");
  EXPECT_EQ(error_text([&] { model_.evaluate(x_, y_); }),
            "evaluate(): the model is not compiled; call compile() with an optimizer and a loss "
            "first");
  EXPECT_EQ(error_text([&] { model_.optimizer(); }),
            "optimizer(): the model is not compiled; call compile() with an optimizer and a loss "
            "first");
}

TEST_F(ModelMistakes, OptionsOfCompile) {
  const auto compile_error = [&](CompileOptions options) {
    return error_text([&] { model_.compile(std::move(options)); });
  };
  EXPECT_EQ(compile_error({}),
            "compile() was given no loss; set .loss, for instance to "
            "torch::nn::CrossEntropyLoss(), or .train_step");
  EXPECT_EQ(compile_error({.loss = nn::MSELoss(), .metrics = {Accuracy(), Accuracy()}}),
            "two figures have the name 'accuracy'; give one of the metrics another name");
  EXPECT_EQ(compile_error({.loss = nn::MSELoss(), .loss_weights = {1, 2}}),
            "compile() was given 2 loss_weights for 1 targets");
  EXPECT_EQ(
      compile_error({.accumulate_steps = 2,
                     .train_step = [](const Tensors&) { return std::map<std::string, Tensor>(); }}),
      "compile() was given a train_step together with clip_norm or accumulate_steps, which "
      "only the step itself can do; call minimize() in it with these options");
}

TEST_F(ModelMistakes, ShapesThatForwardDoesNotTake) {
  compile(nn::MSELoss());
  EXPECT_EQ(fit_error(Tensors{torch::randn({8, 4}), y_}),
            "forward() of the net failed for an input of the shape [8, 4]: mat1 and mat2 shapes "
            "cannot be multiplied (8x4 and 3x2); give the net inputs of the shape that its layers "
            "take");
  EXPECT_EQ(error_text([&] {
              model_.predict(torch::randn({5, 4}));
            }),
            "forward() of the net failed for an input of the shape [5, 4]: mat1 and mat2 shapes "
            "cannot be multiplied (5x4 and 3x2); give the net inputs of the shape that its layers "
            "take");
  CompileOptions two;
  two.inputs = 2;
  compile(nn::MSELoss(), two);
  EXPECT_EQ(fit_error(Tensors{x_, x_, y_}),
            "forward() of the net does not take 2 tensors; give it this number of tensors, or a "
            "std::vector of tensors, or tell compile() by .inputs how many tensors of a batch are "
            "inputs");
}

TEST_F(ModelMistakes, TargetsThatTheLossDoesNotTake) {
  compile(nn::CrossEntropyLoss());
  EXPECT_THAT(fit_error(Tensors{x_, torch::zeros({7, 2})}),
              "the tensors have the shapes [8, 3], [7, 2], but the first axis of each must count "
              "the same examples; give inputs, targets and weights with equal numbers of rows");
  EXPECT_EQ(fit_error(Tensors{x_, torch::zeros({8, 5})}),
            "the loss cannot be computed of an output of the shape [8, 2] and a target of the "
            "shape [8, 5]: 0D or 1D target tensor expected, multi-target not supported; give "
            "targets of the shape and type that the loss takes");
}

TEST_F(ModelMistakes, ALossThatIsNotOneNumberForEachExample) {
  compile([](const Tensor& output, const Tensor& target) { return (output - target).square(); });
  EXPECT_EQ(fit_error(xy_),
            "the loss has the shape [8, 2] for a batch of 8 examples; it must be one number for "
            "each example, or their mean as a single number: reduce the other axes, with mean(1) "
            "for instance");
}

TEST_F(ModelMistakes, WeightsWithALossThatIsAMean) {
  compile(
      [](const Tensor& output, const Tensor& target) { return (output - target).square().mean(); });
  EXPECT_EQ(fit_error(xy_, {.sample_weight = torch::ones({8})}),
            "the examples have weights, but the loss returned a single number; return one number "
            "for each example, such as (output - target).square().mean(1)");
  compile(nn::MSELoss());
  EXPECT_EQ(fit_error(xy_, {.sample_weight = torch::ones({8, 2})}),
            "the weights of a batch have the shape [8, 2], but there are 8 examples; give one "
            "weight for each");
  EXPECT_EQ(fit_error(xy_, {.class_weight = {{1, 2}}}),
            "class_weight needs targets that are numbers of classes, one for each example, but the "
            "targets of 8 examples have the shape [8, 2]; use sample_weight instead");
}

TEST_F(ModelMistakes, BatchesWithAnotherNumberOfTensors) {
  compile(nn::MSELoss());
  EXPECT_EQ(fit_error(Dataset::from_tensors({x_}).batch(4)),
            "a batch has 1 tensors of the shapes [4, 3], but the model was compiled for 1 inputs "
            "and 1 targets, and maybe the weights of the examples; change the dataset, or .inputs "
            "and .targets of compile()");
  EXPECT_EQ(fit_error(Dataset::range(10)).find("a batch has 1 tensors of the shapes []"), 0);
}

TEST_F(ModelMistakes, ADatasetThatNeverEnds) {
  compile(nn::MSELoss());
  const Dataset data = Dataset::from_tensors({x_, y_}).batch(4).repeat();
  EXPECT_EQ(fit_error(data),
            "fit() needs steps_per_epoch: the dataset " + data.describe() +
                " never ends, so the length of an epoch does not follow from it. Set it in the "
                "options of fit()");
  EXPECT_EQ(error_text([&] { model_.evaluate(data); }),
            "the dataset " + data.describe() +
                " never ends, so an evaluation needs steps. Set it in the options");
  EXPECT_EQ(fit_error(xy_, {.validation = data}),
            "the dataset " + data.describe() +
                " never ends, so an evaluation needs validation_steps. Set it in the options");
}

TEST_F(ModelMistakes, ExhaustedData) {
  compile(nn::MSELoss());
  const Dataset data = Dataset::from_tensors({x_, y_}).batch(2);
  const Error error = error_of(
      [&] { model_.fit(data, {.epochs = 2, .steps_per_epoch = 3, .verbose = Verbose::kSilent}); });
  EXPECT_EQ(error.code(), ErrorCode::kEndOfData);
  EXPECT_STREQ(error.what(),
               "fit() ran out of data in epoch 2 of 2, after 1 of the 3 steps that steps_per_epoch "
               "asks for; add repeat() to the dataset, or ask for fewer steps or epochs");
}

TEST_F(ModelMistakes, AMetricOfOtherShapes) {
  const auto metric_error = [&](const Metric& metric) {
    CompileOptions options;
    options.metrics = {metric};
    compile([](const Tensor& output, const Tensor&) { return output.mean(); }, options);
    return fit_error(Tensors{x_, torch::zeros({8, 7})});
  };
  const std::string shapes = "outputs of shape [8, 2] do not belong to targets of shape [8, 7]";
  const std::string remedy =
      ". Check the last layer of the net, and give the axes this order with transpose() or "
      "reshape()";
  EXPECT_EQ(metric_error(Auc()), "metric 'auc': " + shapes +
                                     ": it needs one output for each target, in the same shape" +
                                     remedy);
  EXPECT_EQ(metric_error(Accuracy()),
            "metric 'accuracy': " + shapes +
                ": it needs one output for each target, in the same shape, or targets [examples] "
                "with outputs [examples, classes], where further axes follow in both" +
                remedy);
}

TEST_F(ModelMistakes, TorchOptimInAStep) {
  torch::optim::SGD optimizer(model_.net()->parameters(), torch::optim::SGDOptions(0.1));
  model_.compile({.train_step = [&](const Tensors& batch) -> std::map<std::string, Tensor> {
    optimizer.zero_grad();
    const Tensor loss = torch::mse_loss(model_.net()->forward(batch[0]), batch[1]);
    loss.backward();
    optimizer.step();
    return {{"loss", loss}};
  }});
  EXPECT_EQ(fit_error(xy_),
            "function 'train_step' cannot be captured: it calls step() of torch::optim::SGD, which "
            "keeps the learning rate and its step count as C++ numbers, so that replays would "
            "repeat those of the capture. Use tr::Sgd inside of captured functions");
}

TEST_F(ModelMistakes, AFullDisk) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() + "/disk", "1m");
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a file system";
  Model model(nn::Linear(1000, 1000));
  model.compile({.loss = nn::MSELoss()});
  const auto fit_with = [&](const AnyCallback& callback) {
    const Error error = error_of([&] {
      model.fit(torch::ones({1, 1000}), torch::ones({1, 1000}),
                {.callbacks = {callback}, .verbose = Verbose::kSilent});
    });
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    return std::string(error.what());
  };
  const std::string why =
      "': No space left on device; free space there, or use a folder on another file system";
  const std::string weights = disk.path() + "/weights.safetensors";
  EXPECT_EQ(fit_with(ModelCheckpoint(weights)), "cannot write '" + weights + ".tmp" + why);
  EXPECT_EQ(error_text([&] { model.save(weights); }), "cannot write '" + weights + ".tmp" + why);
  EXPECT_EQ(fit_with(BackupAndRestore(disk.path() + "/backup")),
            "cannot write '" + disk.path() + "/backup/step-0000000002/program.safetensors" + why);
  std::ofstream(disk.path() + "/rest") << std::string(2 << 20, 'x');
  EXPECT_EQ(fit_with(CsvLog(disk.path() + "/log.csv")),
            "CsvLog cannot write '" + disk.path() + "/log.csv.new" + why);
  EXPECT_THAT(fit_with(TensorBoard(disk.path() + "/logs")),
              testing::MatchesRegex("cannot write '" + disk.path() +
                                    "/logs/train/events.out.tfevents.[^']*" + why));
}

TEST_F(ModelMistakes, FiguresThatAreNotNumbers) {
  model_.compile({.train_step = [](const Tensors& batch) -> std::map<std::string, Tensor> {
    return {{"loss", batch[0]}};
  }});
  EXPECT_EQ(fit_error(xy_),
            "train_step returned the figure 'loss' with the shape [8, 3], but a figure must be a "
            "single number; use its mean()");
  EXPECT_EQ(error_text([&] { model_.evaluate(x_, y_); }),
            "evaluate(): the model was compiled with a train_step and without a loss, so there is "
            "nothing to evaluate; give compile() a loss as well");
}

TEST_F(ModelMistakes, OptionsOfFit) {
  compile(nn::MSELoss());
  const Dataset data = Dataset::from_tensors({x_, y_}).batch(4);
  EXPECT_EQ(fit_error({}), "fit() was given no data");
  EXPECT_EQ(fit_error(xy_, {.validation = xy_, .validation_split = 0.5}),
            "fit() was given both validation and validation_split; give one of them");
  EXPECT_EQ(fit_error(data, {.validation_split = 0.5}),
            "fit() was given validation_split with a dataset, whose examples it cannot divide; "
            "give the data as tensors, or a second dataset as validation");
  EXPECT_EQ(fit_error(xy_, {.validation_split = 1}),
            "validation_split is 1, which divides 8 examples into 0 and 8; it must be between 0 "
            "and 1 and leave some for both");
  EXPECT_EQ(fit_error(data, {.sample_weight = torch::ones({8})}),
            "fit() was given sample_weight with a dataset; let the batches of the dataset have the "
            "weights as their last tensor instead");
  EXPECT_EQ(fit_error(xy_, {.epochs = 1, .initial_epoch = 2}),
            "fit() cannot run from epoch 2 to epoch 1; epochs is the number after the last one");
  EXPECT_EQ(fit_error(xy_, {.steps_per_epoch = 0}), "steps_per_epoch is 0, but must be 1 or more");
}

}  // namespace
}  // namespace trireme
