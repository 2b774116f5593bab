// Tests of CheckpointManager when parameter servers are lost, their disks fail, or another program
// has taken over the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "trireme/coordinator/cluster_coordinator.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/test_servers.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/testing/in_process_test_cluster.h"
#include "trireme/train/checkpoint_manager.h"
#include "trireme/train/held_files.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using torch::Tensor;

Variable make_count(const char* name) {
  return Variable(name, torch::zeros({}, torch::kLong), {.trainable = false});
}

// When a parameter server is started again.
enum class Loss { kBeforeRestore, kBeforeSave, kWhileSaving };

class LossTest : public testing::TestWithParam<Loss> {
 protected:
  // Counts to `end` from the newest checkpoint, and saves every 10 steps. Restarts a server before
  // the checkpoint of step 30.
  void count_to(int64_t end, std::optional<Loss> loss = std::nullopt) {
    const auto lose_server = [&] { cluster_.restart({"ps", 0}); };
    HeldFiles files;
    const Variable own = make_count("own");
    ParameterServerStrategy strategy{Cluster(cluster_.spec())};
    const auto scope = strategy.scope();
    const Variable first = make_count("first"), second = make_count("second");
    ClusterCoordinator coordinator(strategy);
    auto add = function("add", [&](const Tensor& one) {
      first.assign_add(one);
      second.assign_add(one);
    });
    const auto manager = internal::Access<CheckpointManager>::make(
        folder_.path(), {own, first, second}, {.every_steps = 10}, files);
    if (loss == Loss::kBeforeRestore) lose_server();
    int64_t step = manager->restore_or_initialize();
    while (step < end) {
      coordinator.schedule(add, torch::ones({}, torch::kLong));
      coordinator.join(std::chrono::seconds(60));
      const bool now = ++step == 30;
      if (now && loss == Loss::kBeforeSave) lose_server();
      if (now && loss == Loss::kWhileSaving) files.hold(true);
      manager->save_if_due(step);
      if (now && loss == Loss::kWhileSaving) {
        lose_server();
        files.hold(false);
        manager->wait();
      }
    }
    manager->wait();
    EXPECT_EQ(first.read().item<int64_t>(), end);
    EXPECT_EQ(second.read().item<int64_t>(), end);
  }

  InProcessTestCluster cluster_{{.workers = 1, .ps = 2}};
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Times, LossTest,
                         testing::Values(Loss::kBeforeRestore, Loss::kBeforeSave,
                                         Loss::kWhileSaving));

TEST_P(LossTest, ThrowsPsLostAfterWhichTheProgramContinues) {
  count_to(20);
  try {
    count_to(40, GetParam());
    FAIL() << "nothing was thrown";
  } catch (const PsLost& lost) {
    EXPECT_EQ(lost.code(), ErrorCode::kDataLoss);
    EXPECT_EQ(lost.origin().task, "/job:ps/task:0");
    EXPECT_THAT(lost.what(), HasSubstr("restore_or_initialize"));
  }
  count_to(40);
}

// The program still saves when another one has taken over its job and saves into the same folder.
TEST(SupersededProgram, LeavesTheFilesOfItsSuccessorAlone) {
  TemporaryFolder folder;
  TestServers tasks(1);
  HeldFiles files;
  const Variable own = make_count("own");
  const ParameterServers servers(tasks.spec(), {.job = "x"});
  const auto scope = servers.scope();
  const Variable there = make_count("there");
  const auto manager =
      internal::Access<CheckpointManager>::make(folder.path(), {own, there}, {}, files);
  files.hold(true);
  ASSERT_TRUE(manager->save(98));

  DropJobRequest drop;
  drop.set_job("x");
  PsClient& client = internal::Access<ParameterServers>::backend(servers)->client();
  throw_if_error(client.channel(0).call(kDropJob, make_message(drop)).status());
  const ParameterServers successor(tasks.spec(), {.job = "x"});
  const std::string file = folder.path() + "/step-0000000099/ps-0-of-1.safetensors";
  std::filesystem::create_directory(folder.path() + "/step-0000000099");
  std::ofstream(file) << "of the successor";

  files.hold(false);
  const Error error = error_of([&] { manager->wait(); });
  EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_TRUE(manager->checkpoints().empty());
}

TEST(UnreadableServerFile, TheCheckpointBeforeItIsUsed) {
  TemporaryFolder folder;
  HeldFiles files;
  TestServers tasks(1, {.files = &files});
  const ParameterServers servers(tasks.spec());
  const auto scope = servers.scope();
  const Variable count = make_count("count");
  CheckpointManager manager(folder.path(), {count});
  for (int step = 1; step <= 2; ++step) {
    count.assign_add(torch::ones({}, torch::kLong));
    manager.save(step);
  }
  manager.wait();
  files.fail_reads("step-0000000002/ps-0");
  testing::internal::CaptureStderr();
  EXPECT_EQ(manager.restore_or_initialize(), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("step-0000000002/ps-0-of-1"));
  EXPECT_EQ(count.read().item<int64_t>(), 1);
  files.fail_reads("");
  EXPECT_EQ(manager.restore_or_initialize(), 2);
  EXPECT_EQ(count.read().item<int64_t>(), 2);
}

}  // namespace
}  // namespace trireme
