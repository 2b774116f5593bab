// A client program for tests that kill it, and the tasks of its cluster. It counts how often each
// example was drawn, and saves a checkpoint after every few steps. It starts with
// restore_or_initialize(), and again in the same way when a parameter server was lost.
//
//   checkpoint_client CLUSTER_JSON DIRECTORY copy|stream all|variables
//
// With "variables" it restores no positions of iterators, so that examples are counted wrongly: a
// test of the tests. Goes on until SIGTERM, and then until every example was counted. Prints:
//
//   restored N     state of the checkpoint of step N was restored; 0 without a checkpoint
//   saved N        checkpoint of step N has been written
//   failed CODE: text   a save failed
//   lost TASK      parameter server was lost
//   end N          step of the last checkpoint
//   error CODE: text
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/fault/counted_examples.h"
#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/checkpoint_manager.h"

namespace tr = trireme;
using torch::Tensor;

namespace {

constexpr int64_t kSteps = 25;  // Steps between two saves.
constexpr size_t kBurstsInFlight = 4;

volatile std::sig_atomic_t stopped = 0;

void print(const char* what, const tr::Error& error) {
  std::printf("%s %s: %s\n", what, tr::error_code_name(error.code()), error.what());
}

class Job {
 public:
  explicit Job(char** argv)
      : spec_(tr::ClusterSpec::from_json(argv[1])),
        all_(argv[4] == std::string("all")),
        strategy_(tr::Cluster(spec_), {.job = "kills",
                                       .lease = std::chrono::seconds(1),
                                       .partitioner = tr::FixedPartitioner(spec_.num_tasks("ps"))}),
        scope_(strategy_.scope()),
        counts_("counts", torch::zeros({tr::kExamples, 1})),
        total_("total", torch::zeros({}, torch::kInt64)),
        weights_("weights", torch::ones({64})),
        // Adds 1 to the row of each example.
        counter_({counts_}, {.lr = 1}),
        adam_({weights_}, {.lr = 1e-3}),
        coordinator_(strategy_),
        data_(coordinator_.create_per_worker_dataset([](const tr::InputContext& context) {
          return tr::examples_of(context.input_pipeline_id, context.num_input_pipelines);
        })),
        step_(tr::function(
            "step", std::function<Tensor(tr::Iterator&)>([this](tr::Iterator& examples) {
              counter_.minimize(-torch::embedding(counts_.read(), examples.next()).sum());
              adam_.minimize(weights_.read().pow(2).sum());
              total_.assign_add(torch::ones({}, torch::kInt64));
              const Tensor work = torch::ones({150, 150});
              return work.matmul(work).sum();
            }))),
        manager_(
            argv[2], {total_, counter_, adam_, data_},
            {.mode = argv[3] == std::string("copy") ? tr::SaveMode::kCopy : tr::SaveMode::kStream,
             // Workers are never idle.
             .when_busy = tr::WhenBusy::kSkip}) {}

  // Restores the newest checkpoint and trains. Throws PsLost if a server is lost.
  void run() {
    const auto latest = manager_.latest();
    reached_ = all_ || !latest ? manager_.restore_or_initialize()
                               : manager_.restore(*latest, {.patterns = {"*"}});
    std::printf("restored %ld\n", reached_);
    train();
  }

 private:
  void train() {
    while (stopped == 0 || counts_.read().min().item<float>() < 1) {
      auto& burst = bursts_.emplace_back();
      for (int64_t i = 0; i < kSteps; ++i) {
        burst.push_back(coordinator_.schedule(step_, data_.iterator()));
      }
      reached_ += kSteps;
      if (bursts_.size() >= kBurstsInFlight) finish_oldest();
      print_failure([&] { manager_.save(reached_); });
      print_saved();
    }
    while (!bursts_.empty()) finish_oldest();
    coordinator_.join();
    print_failure([&] { manager_.wait(); });
    manager_.save(++reached_);
    manager_.wait();
    std::printf("end %ld\n", reached_);
  }

  void finish_oldest() {
    try {
      for (const tr::RemoteValue<>& value : bursts_.front()) coordinator_.fetch(value);
    } catch (const tr::Error&) {
      coordinator_.join();  // Throws the cause, where fetch() has thrown CANCELLED.
      throw;
    }
    bursts_.pop_front();
  }

  // Prints the error of a save, which need not be the last one. A server that was lost must have
  // thrown PsLost, so the errors of calls to it end the program.
  static void print_failure(const std::function<void()>& save) {
    try {
      save();
    } catch (const tr::PsLost&) {
      throw;
    } catch (const tr::Error& error) {
      if (error.origin().task.starts_with("/job:ps") &&
          (error.code() == tr::ErrorCode::kTaskUnreachable ||
           error.code() == tr::ErrorCode::kIncarnationChanged)) {
        throw;
      }
      print("failed", error);
    }
  }

  void print_saved() {
    const int64_t saved = manager_.last_save().step;
    if (saved == saved_) return;
    saved_ = saved;
    std::printf("saved %ld\n", saved);
  }

  const tr::ClusterSpec spec_;
  const bool all_;  // True to restore everything.
  const tr::ParameterServerStrategy strategy_;
  const tr::ParameterServers::Scope scope_;
  const tr::Variable counts_, total_, weights_;
  const tr::Sgd counter_;
  const tr::Adam adam_;
  tr::ClusterCoordinator coordinator_;
  const tr::PerWorkerDataset data_;
  const tr::Function<Tensor(tr::Iterator&)> step_;
  tr::CheckpointManager manager_;
  std::deque<std::vector<tr::RemoteValue<>>> bursts_;
  int64_t reached_ = 0;  // Number of the last step that was scheduled.
  int64_t saved_ = 0;    // Step of the last checkpoint that was printed.
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  std::signal(SIGTERM, [](int) { stopped = 1; });
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  at::set_num_threads(1);
  while (true) {
    try {
      Job(argv).run();
      return 0;
    } catch (const tr::PsLost& lost) {
      std::printf("lost %s\n", lost.origin().task.c_str());
    } catch (const tr::Error& error) {
      print("error", error);
      return 1;
    }
  }
}
