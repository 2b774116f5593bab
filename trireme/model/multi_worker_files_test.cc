// Files of workers that train together, as threads of one process: worker 0 writes, and all workers
// restore. tests/fault/fit_kill_test.cc sends SIGTERM to real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/exec/random.h"
#include "trireme/metric/metric.h"
#include "trireme/model/backup_and_restore.h"
#include "trireme/model/csv_log.h"
#include "trireme/model/fit_state.h"
#include "trireme/model/model.h"
#include "trireme/model/model_checkpoint.h"
#include "trireme/model/tensorboard.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/worker_threads.h"
#include "trireme/train/held_files.h"
#include "trireme/train/state_dict.h"

namespace trireme {
namespace {

namespace nn = torch::nn;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using torch::Tensor;

const MultiWorkerMirroredStrategyOptions kUnhurried{.lease = seconds(10),
                                                    .connect_timeout = seconds(60)};
constexpr int64_t kNoStep = std::numeric_limits<int64_t>::max();

// A linear layer. Names are unique in a process, and a checkpoint has those of worker 0, so the
// names of each worker must be the same in every run.
struct FilesNetImpl : nn::Module {
  explicit FilesNetImpl(int worker)
      : weight(register_parameter("weight_" + std::to_string(worker),
                                  torch::linspace(-1, 1, 4).view({1, 4}))),
        bias(register_parameter("bias_" + std::to_string(worker), torch::zeros({1}))) {}
  Tensor forward(const Tensor& x) { return torch::linear(x, weight, bias); }

  Tensor weight, bias;
};
TORCH_MODULE(FilesNet);

Tensor line_inputs() {
  return torch::arange(52 * 4).remainder(11).to(torch::kFloat).view({52, 4}) / 11;
}

// A model whose epochs have seven batches.
Model<FilesNet> make_line_model(const Strategy& strategy, int worker) {
  Model<FilesNet> model(FilesNet(worker), strategy);
  model.compile(
      {.optimizer = Adam({.lr = 0.02}), .loss = nn::MSELoss(), .metrics = {MeanAbsoluteError()}});
  return model;
}

FitOptions line_options(int64_t epochs, std::vector<AnyCallback> callbacks) {
  const Tensor x = line_inputs();
  return {.batch_size = 8,
          .epochs = epochs,
          .validation = std::pair(x, x.sum(1, true)),
          .callbacks = std::move(callbacks),
          .verbose = Verbose::kSilent};
}

History fit_line(Model<FilesNet>& model, int64_t epochs, std::vector<AnyCallback> callbacks) {
  const Tensor x = line_inputs();
  return model.fit(x, x.sum(1, true), line_options(epochs, std::move(callbacks)));
}

// The weights and the history of each worker.
struct WorkerResults {
  std::vector<std::string> errors, weights, histories;
};

// Trains on two workers. Worker 1 throws an error after a step.
WorkerResults train_line(const std::string& folder, int64_t save_freq,
                         int64_t interrupted_at = kNoStep) {
  set_seed(7);
  const WorkerThreads workers(2);
  WorkerResults results{.errors = {}, .weights = {"", ""}, .histories = {"", ""}};
  results.errors = workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    auto model = make_line_model(MultiWorkerMirroredStrategy(me, kUnhurried), me.task->index);
    const auto interrupt = [=](Fit& fit, const Logs&) {
      if (worker == 1 && fit.step() >= interrupted_at) {
        throw Error(ErrorCode::kCancelled, "interrupted by the test");
      }
    };
    const History history = fit_line(
        model, 4, {on_batch_end(interrupt), BackupAndRestore(folder, {.save_freq = save_freq})});
    results.histories[worker] = history.to_json();
    for (const Tensor& weight : model.net()->parameters()) {
      results.weights[worker].append(static_cast<const char*>(weight.const_data_ptr()),
                                     weight.nbytes());
    }
  });
  return results;
}

class MultiWorkerFilesTest : public testing::Test {
 protected:
  ~MultiWorkerFilesTest() override { set_seed(0); }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  static bool is_there(const std::string& path) { return std::filesystem::exists(path); }
  // Writes the state of a linear layer whose weights all have one value. Returns the path.
  std::string write_linear(const std::string& name, double value) const {
    nn::Linear net(4, 1);
    nn::init::constant_(net->weight, value);
    save_state_dict(net, path(name));
    return path(name);
  }

  TemporaryFolder folder_;
};

TEST_F(MultiWorkerFilesTest, OnlyTheChiefWritesFiles) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const std::string mine = path("of_" + std::to_string(me.task->index));
    auto model = make_line_model(MultiWorkerMirroredStrategy(me, kUnhurried), me.task->index);
    const auto check_chief = [&](Fit& fit) { EXPECT_EQ(fit.is_chief(), me.task->index == 0); };
    if (me.task->index == 0) std::filesystem::create_directory(mine);
    fit_line(model, 2,
             {on_train_begin(check_chief), CsvLog(mine + "/log.csv"),
              TensorBoard(mine + "/events", {.update_freq = 1, .text = {{"run", "text"}}}),
              ModelCheckpoint(mine + "/weights/{epoch}.safetensors"),
              BackupAndRestore(mine + "/backup")});
    model.save(mine + "/model.safetensors");
    CheckpointManager manager(mine + "/checkpoints", {model.net(), model.optimizer()});
    EXPECT_TRUE(manager.save(3));
    manager.wait();
    EXPECT_TRUE(
        is_there(path("of_0/checkpoints/" + internal::checkpoint_name(3))));  // on all workers
  }),
              Each(""));
  for (const char* file : {"log.csv", "events/train", "events/validation", "weights/2.safetensors",
                           "backup/ended", "model.safetensors"}) {
    EXPECT_TRUE(is_there(path("of_0/") + file)) << file;
  }
  EXPECT_FALSE(is_there(path("of_1")));
}

TEST_F(MultiWorkerFilesTest, AFitThatIsInterruptedEndsAsOneThatIsNot) {
  const WorkerResults whole = train_line(path("whole"), 0);
  ASSERT_THAT(whole.errors, Each(""));
  EXPECT_EQ(whole.weights[0], whole.weights[1]);
  EXPECT_EQ(whole.histories[0], whole.histories[1]);
  // At the end of an epoch, and in the midst of one.
  for (const int64_t save_freq : {0, 3}) {
    const std::string folder = path("of_" + std::to_string(save_freq));
    EXPECT_THAT(train_line(folder, save_freq, 18).errors,
                Each(HasSubstr("interrupted by the test")));
    const WorkerResults continued = train_line(folder, save_freq);
    ASSERT_THAT(continued.errors, Each(""));
    EXPECT_THAT(continued.weights, Each(whole.weights[0]));
    EXPECT_THAT(continued.histories, Each(whole.histories[0]));
  }
}

// Each worker has data of its own, of which it has drawn another part.
TEST_F(MultiWorkerFilesTest, EachWorkerContinuesInItsOwnData) {
  const WorkerThreads workers(2);
  for (const bool continues : {false, true}) {
    EXPECT_THAT(workers.run([&](const Cluster& me) {
      const int worker = me.task->index;
      const MultiWorkerMirroredStrategy strategy(me, kUnhurried);
      const auto scope = strategy.scope();
      const Variable w("w_" + std::to_string(worker), torch::zeros({}));
      Iterator data = Dataset::from_tensors({torch::arange(10)}).iterator();
      CheckpointManager manager(path("own"), {w, data});
      if (continues) {
        EXPECT_EQ(manager.restore_or_initialize(), 5);
        EXPECT_EQ(data.next<1>()[0].item<int64_t>(), worker == 0 ? 1 : 4);
        return;
      }
      EXPECT_EQ(manager.restore_or_initialize(), 0);
      for (int i = 0; i < (worker == 0 ? 1 : 4); ++i) data.next<1>();
      manager.save(5);
      manager.wait();
    }),
                Each(""));
  }
}

TEST_F(MultiWorkerFilesTest, OnlyTheChiefSavesDataWithoutVariables) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    const MultiWorkerMirroredStrategy strategy(me, kUnhurried);
    const auto scope = strategy.scope();
    Iterator data = Dataset::from_tensors({torch::arange(10)}).iterator();
    CheckpointManager manager(path("of_" + std::to_string(worker)), {data});
    for (int i = 0; i < (worker == 0 ? 1 : 4); ++i) data.next<1>();
    EXPECT_TRUE(manager.save(1));
    manager.wait();
    EXPECT_TRUE(is_there(path("of_0/" + internal::checkpoint_name(1))));  // on all workers
    data.next<1>();
    EXPECT_EQ(manager.restore_or_initialize(), 1);
    EXPECT_EQ(data.next<1>()[0].item<int64_t>(), worker == 0 ? 1 : 4);
  }),
              Each(""));
  EXPECT_FALSE(is_there(path("of_1")));
}

// The disk of one worker fails after it has found the checkpoint.
TEST_F(MultiWorkerFilesTest, ACheckpointThatOneWorkerCannotReadIsRestoredByNone) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    HeldFiles files;
    const MultiWorkerMirroredStrategy strategy(me, kUnhurried);
    const auto scope = strategy.scope();
    const Variable w("w_" + std::to_string(worker), torch::ones({4}));
    const auto manager =
        internal::Access<CheckpointManager>::make(path("unreadable"), {w}, {}, files);
    const std::string first = internal::checkpoint_name(1);
    manager->save(1);
    manager->wait();
    w.assign(torch::zeros({4}));
    for (const int failing : {0, 1}) {
      if (worker == failing) files.fail_reads("program.safetensors", /*only_data=*/true);
      EXPECT_THAT(error_text([&] { manager->restore(first); }), HasSubstr("Input/output error"));
      EXPECT_TRUE(w.read().equal(torch::zeros({4}))) << "worker " << failing << " cannot read";
      files.fail_reads("");
    }
    EXPECT_EQ(manager->restore(first), 1);
    EXPECT_TRUE(w.read().equal(torch::ones({4})));
  }),
              Each(""));
}

// Threads share a file system, so another path stands for the file of another machine.
TEST_F(MultiWorkerFilesTest, AStateDictThatOneWorkerCannotReadIsLoadedByNone) {
  const std::string file = write_linear("net.safetensors", 2);
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, kUnhurried);
    const nn::Linear net = strategy.distribute(nn::Linear(4, 1));
    const Tensor before = net->weight.detach().clone();
    for (const int failing : {0, 1}) {
      const std::string mine = me.task->index == failing ? path("missing.safetensors") : file;
      EXPECT_THAT(error_text([&] { load_state_dict(net, mine); }),
                  AllOf(HasSubstr("worker " + std::to_string(failing) + ": "),
                        HasSubstr("missing.safetensors"), HasSubstr("does not exist")));
      EXPECT_TRUE(net->weight.equal(before)) << "worker " << failing << " cannot read";
    }
    EXPECT_THAT(load_state_dict(net, file), IsEmpty());
    EXPECT_TRUE(net->weight.equal(torch::full({1, 4}, 2.0)));
  }),
              Each(""));
}

TEST_F(MultiWorkerFilesTest, AStateDictThatDiffersBetweenWorkersIsLoadedByNone) {
  const std::vector<std::string> paths = {write_linear("of_0.safetensors", 1),
                                          write_linear("of_1.safetensors", 2)};
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const MultiWorkerMirroredStrategy strategy(me, kUnhurried);
    const nn::Linear net = strategy.distribute(nn::Linear(4, 1));
    const Tensor before = net->weight.detach().clone();
    const std::string& mine = paths[me.task->index];
    EXPECT_THAT(error_text([&] { load_state_dict(net, mine); }),
                AllOf(HasSubstr("worker 1 cannot load the state dict that worker 0 loads"),
                      HasSubstr("state dict '" + mine + "'"),
                      HasSubstr("Copy the same file to every machine, or load from a shared "
                                "folder")));
    EXPECT_TRUE(net->weight.equal(before));
  }),
              Each(""));
}

TEST_F(MultiWorkerFilesTest, ErrorsOfOneWorkerAreThrownByAll) {
  const WorkerThreads workers(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    HeldFiles files;
    const std::string second = internal::checkpoint_name(2);
    auto model = make_line_model(MultiWorkerMirroredStrategy(me, kUnhurried), me.task->index);
    const auto manager = internal::Access<CheckpointManager>::make(
        path("errors"), {model.net(), model.optimizer()}, {.every_steps = 2}, files);
    EXPECT_FALSE(manager->save_if_due(1));
    EXPECT_TRUE(manager->save_if_due(2));
    EXPECT_THAT(error_text([&] { manager->save(2); }), HasSubstr("worker 0: "));
    EXPECT_EQ(manager->restore_or_initialize(), 2);

    if (worker == 1) files.fail_reads(second);
    EXPECT_THAT(error_text([&] { manager->restore_or_initialize(); }),
                AllOf(HasSubstr("worker 1 cannot restore"), HasSubstr("errors/" + second),
                      HasSubstr("Input/output error"), HasSubstr("that all workers share")));
    files.fail_reads("");
    EXPECT_EQ(manager->restore(second), 2);

    // The disk of worker 0 is full, which it notices in the background.
    if (worker == 0) files.fail(true);
    EXPECT_TRUE(manager->save(4));
    EXPECT_THAT(error_text([&] { manager->wait(); }), HasSubstr("the disk is full"));
    EXPECT_THAT(error_text([&] { model.load(path("missing.safetensors")); }),
                HasSubstr("worker 0: "));
    EXPECT_THAT(error_text([&] { model.save(path("missing/folder.safetensors")); }),
                HasSubstr("worker 0: "));
  }),
              Each(""));
}

// All threads get the signal, but those of a worker may see it earlier than others.
TEST_F(MultiWorkerFilesTest, SigtermSavesAtTheSameStepOnAllWorkers) {
  const WorkerThreads workers(2);
  std::vector<int64_t> last(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    const MultiWorkerMirroredStrategy strategy(me, kUnhurried);
    const auto scope = strategy.scope();
    const Variable w("w_" + std::to_string(worker), torch::zeros({}));
    CheckpointManager manager(path("sigterm"), {w}, {.save_on_sigterm = true});
    manager.wait();  // both watch for the signal
    int64_t& step = last[worker];
    for (step = 1; step < 1000; ++step) {
      if (worker == 1 && step == 5) raise(SIGTERM);
      if (manager.save_if_due(step)) break;
    }
    EXPECT_TRUE(manager.interrupted());
    EXPECT_TRUE(is_there(path("sigterm/" + internal::checkpoint_name(step))));
    manager.wait();  // neither puts the handler back while the other needs it
  }),
              Each(""));
  EXPECT_EQ(last[0], last[1]);
  EXPECT_GE(last[0], 5);
}

// Notes the step at which the fit() learns that worker 1 was interrupted.
class NoteInterruption : public Callback {
 public:
  NoteInterruption(int worker, int64_t& step) : worker_(worker), step_(step) {}
  void on_train_begin(Fit& fit) override {
    internal::FitState& state = internal::Access<Fit>::state(fit);
    const auto note = [&state, &step = step_](bool) {
      if (state.interrupted() && step == 0) step = state.place().step;
      return false;
    };
    state.add_save_point({.due = note, .save = nullptr, .interrupted = [&state, worker = worker_] {
                            return worker == 1 && state.place().step == 9;
                          }});
  }

 private:
  const int worker_;
  int64_t& step_;
};

TEST_F(MultiWorkerFilesTest, WorkersAgreeOnAnInterruptionAndOnTheEnd) {
  const WorkerThreads workers(2);
  std::vector<int64_t> interrupted(2), stopped(2), ended(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    const int worker = me.task->index;
    auto model = make_line_model(MultiWorkerMirroredStrategy(me, kUnhurried), me.task->index);
    const auto stop = [&](Fit& fit, const Logs&) {
      if (worker == 1 && fit.step() == 11) fit.stop();
    };
    fit_line(model, 4,
             {NoteInterruption(worker, interrupted[worker]), on_batch_end(stop),
              on_train_end([&](Fit& fit, const Logs&) { stopped[worker] = fit.step(); })});
    // A stop between two epochs.
    const auto stop_epoch = [&](Fit& fit, const Logs&) {
      if (worker == 0 && fit.epoch() == 1) fit.stop();
    };
    ended[worker] = fit_line(model, 4, {on_epoch_end(stop_epoch)}).epochs().size();
  }),
              Each(""));
  EXPECT_THAT(interrupted, Each(9));
  EXPECT_THAT(stopped, Each(11));
  EXPECT_THAT(ended, Each(2));
}

TEST_F(MultiWorkerFilesTest, AnEvaluationUsesEachExampleOnce) {
  const Tensor x = line_inputs(), y = x.sum(1, true);
  const auto evaluate = [&](const Strategy& strategy, int worker) {
    auto model = make_line_model(strategy, worker);
    std::vector<double> figures;
    // Seven batches, the first three of them, and one, of which only one worker gets a part.
    for (const Logs& logs :
         {model.evaluate(x, y, {.batch_size = 8, .verbose = Verbose::kSilent}),
          model.evaluate(x, y, {.batch_size = 8, .steps = 3, .verbose = Verbose::kSilent}),
          model.evaluate(x, y, {.batch_size = 52, .verbose = Verbose::kSilent})}) {
      figures.push_back(logs["loss"]);
      figures.push_back(logs["mean_absolute_error"]);
    }
    return figures;
  };
  const std::vector<double> expected = evaluate(Strategy(), 0);
  const WorkerThreads workers(2);
  std::vector<std::vector<double>> figures(2);
  EXPECT_THAT(workers.run([&](const Cluster& me) {
    figures[me.task->index] = evaluate(MultiWorkerMirroredStrategy(me, kUnhurried), me.task->index);
  }),
              Each(""));
  EXPECT_EQ(figures[0], figures[1]);
  EXPECT_THAT(figures[0], testing::Pointwise(testing::DoubleNear(1e-6), expected));
}

}  // namespace
}  // namespace trireme
