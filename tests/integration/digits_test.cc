// Asynchronous training on parameter servers reaches the accuracy of a single program: three worker
// processes train a net on real data, each at its own pace, with the variables on two servers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "absl/strings/str_join.h"
#include "tests/integration/commands.h"
#include "tests/integration/digits.h"
#include "trireme/function/module.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {
namespace {

constexpr int kWorkers = 3, kEpochs = 60, kRuns = 3;

double accuracy(DigitsNet net, const Digits& digits) {
  const torch::NoGradGuard no_gradients;
  return net->forward(digits.images)
      .argmax(1)
      .eq(digits.labels)
      .to(torch::kFloat)
      .mean()
      .item<double>();
}

double accuracy_of_one_program(const Digits& train, const Digits& test) {
  torch::manual_seed(1);
  DigitsNet net;
  train_digits(net, Adam(net, {.lr = 0.001}), train, kEpochs);
  return accuracy(net, test);
}

double accuracy_of_workers(const std::string& train, const Digits& test) {
  ProcessCluster cluster({{.workers = 1, .ps = 2}});
  std::vector<std::string> servers;
  for (int i = 0; i < 2; ++i) servers.push_back(cluster.spec().address({"ps", i}));
  std::vector<std::unique_ptr<Subprocess>> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(value_or_throw(Subprocess::start(
        {.argv = {built_program("digits_worker"), absl::StrJoin(servers, ","), train,
                  std::to_string(i), std::to_string(kWorkers), std::to_string(kEpochs)},
         .null_stdin = true})));
  }
  for (auto& worker : workers) {
    const auto status = worker->wait(after(kLimit));
    EXPECT_TRUE(status && status->ok());
  }

  const ParameterServers parameter_servers(cluster.spec(), {.job = "digits",
                                                            .resume = true,
                                                            .partitioner = FixedPartitioner(2),
                                                            .placement = Placement::kBalanced});
  DigitsNet distributed, trained;
  {
    auto scope = parameter_servers.scope();
    const torch::NoGradGuard no_gradients;
    const auto variables = track(distributed);
    for (size_t i = 0; i < variables.size(); ++i) {
      trained->parameters()[i].copy_(variables[i].read());
    }
  }
  return accuracy(trained, test);
}

TEST(Digits, ThreeWorkersReachWhatOneProgramReaches) {
  ASSERT_TRUE(std::filesystem::exists(DIGITS_FILE)) << "run tools/setup to install the digits";
  const std::string folder = testing::TempDir() + "/digits." + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const CompletedProcess unpacked = value_or_throw(
      run_process({.argv = {"/usr/bin/env", "gzip", "-dc", DIGITS_FILE}}, after(kLimit)));
  std::ofstream(folder + "/all.csv") << unpacked.stdout_text;
  const Digits all = Digits::load(folder + "/all.csv");
  ASSERT_EQ(all.labels.size(0), 1797);
  // Every third digit is for the test, the rest is for training.
  const Digits test = all.part(0, 3);
  std::istringstream lines(unpacked.stdout_text);
  std::ofstream train(folder + "/train.csv");
  int number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    if (number % 3 != 0) train << line << "\n";
  }
  train.close();

  const double expected = accuracy_of_one_program(Digits::load(folder + "/train.csv"), test);
  EXPECT_GT(expected, 0.95);

  // Asynchronous training ends a little differently each time, so the test compares the mean.
  double reached = 0;
  for (int i = 0; i < kRuns; ++i)
    reached += accuracy_of_workers(folder + "/train.csv", test) / kRuns;
  std::printf("one program: %.4f, %d workers: %.4f\n", expected, kWorkers, reached);
  EXPECT_GT(reached, expected - 0.01);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme
