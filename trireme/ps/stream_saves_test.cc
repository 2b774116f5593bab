// Saves while variables change, on disks that are slow, full or hang.
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "trireme/ps/job_service.h"
#include "trireme/ps/jobs.pb.h"
#include "trireme/ps/saves_fixture.h"
#include "trireme/ps/stream_capture.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Files whose writes wait while the gate is closed, and fail while the disk is full.
class GatedFiles final : public Files {
 public:
  void set_open(bool open) {
    MutexLock lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void set_full(bool full) {
    MutexLock lock(mutex_);
    full_ = full;
    changed_.notify_all();
  }
  // Returns the number of writes that wait.
  int waiting() {
    MutexLock lock(mutex_);
    return waiting_;
  }

  // Makes create() wait for paths with this part; for none if it is empty.
  void hold_creation(const std::string& part) {
    MutexLock lock(mutex_);
    held_ = part;
    changed_.notify_all();
  }

  absl::StatusOr<std::unique_ptr<OutputFile>> create(const std::string& path) override {
    wait_for_creation(path);
    TRIREME_ASSIGN_OR_RETURN(auto file, files_.create(path));
    return std::make_unique<GatedFile>(*this, std::move(file));
  }
  absl::StatusOr<std::unique_ptr<InputFile>> open(const std::string& path, Links links) override {
    return files_.open(path, links);
  }
  absl::Status make_directory(const std::string& path) override {
    return files_.make_directory(path);
  }
  absl::Status sync_directory(const std::string& path) override {
    return files_.sync_directory(path);
  }
  absl::Status rename(const std::string& from, const std::string& to) override {
    return files_.rename(from, to);
  }
  absl::Status remove(const std::string& path) override { return files_.remove(path); }
  absl::Status remove_directory(const std::string& path) override {
    return files_.remove_directory(path);
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    return files_.list(path);
  }
  absl::StatusOr<bool> exists(const std::string& path) override { return files_.exists(path); }
  absl::StatusOr<uint64_t> size(const std::string& path) override { return files_.size(path); }

 private:
  class GatedFile final : public OutputFile {
   public:
    GatedFile(GatedFiles& files, std::unique_ptr<OutputFile> file)
        : files_(files), file_(std::move(file)) {}
    absl::Status write(uint64_t offset, const void* data, size_t bytes) override {
      TRIREME_RETURN_IF_ERROR(files_.pass());
      return file_->write(offset, data, bytes);
    }
    absl::Status finish(uint64_t bytes) override { return file_->finish(bytes); }

   private:
    GatedFiles& files_;
    const std::unique_ptr<OutputFile> file_;
  };

  void wait_for_creation(const std::string& path) {
    const Time limit = after(seconds(60));
    MutexLock lock(mutex_);
    while (!held_.empty() && path.find(held_) != std::string::npos &&
           changed_.wait_until(mutex_, limit)) {
    }
  }

  absl::Status pass() {
    const Time limit = after(seconds(60));
    MutexLock lock(mutex_);
    ++waiting_;
    while (!open_ && !full_ && changed_.wait_until(mutex_, limit)) {
    }
    --waiting_;
    return full_ ? make_status(ErrorCode::kResourceExhausted, "the disk is full")
                 : absl::OkStatus();
  }

  Files& files_ = Files::local();
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string held_ ABSL_GUARDED_BY(mutex_);
};

// More than the pool has room for, in tensors of very different sizes.
const std::vector<TrainedVariables::Spec> kLarge = {
    {"dense", {3'000'000}, "adam"}, {"table", {20'000, 64}, "adagrad"},
    {"tiny", {3}, "adam"},          {"scalar", {}, ""},
    {"sum", {500'000, 2}, ""},      {"small", {100, 5}, "adam"}};

class StreamSavesTest : public testing::Test {
 protected:
  // Pushes to all variables, dense and by rows, until stop().
  void start_pushing(TrainedVariables& trained) {
    for (int thread = 0; thread < 2; ++thread) {
      pushing_.push_back(std::async(std::launch::async, [this, &trained, thread] {
        for (int i = 0; !stop_; ++i) {
          const double value = 0.125 * (i % 7) + thread;
          for (const size_t variable : {2, 3, 5}) trained.push(variable, value);
          trained.push_rows(1, {i % 20'000, 19'999 - (i * 37) % 20'000, 7}, value);
          trained.push_rows(4, {(i * 7919) % 500'000}, value);
          if (i % 3 == thread) trained.push(i % 2 == 0 ? 0 : 4, value);
          ++pushed_;
        }
      }));
    }
  }
  void stop() {
    stop_ = true;
    for (auto& pushing : pushing_) pushing.get();
    pushing_.clear();
    stop_ = false;
  }

  TemporaryFolder folder_;
  GatedFiles files_;
  TestCheckpoints checkpoints_{folder_.path()};
  std::atomic<bool> stop_ = false;
  std::atomic<int> pushed_ = 0;
  std::vector<std::future<void>> pushing_;
};

TEST_F(StreamSavesTest, HasTheStateAtTheCutWhileAllVariablesChange) {
  TestServers servers(2, {.files = &files_});
  TrainedVariables trained(servers, 2, kLarge);
  trained.train(2);
  for (uint64_t step = 1; step <= 5; step += 2) {
    const auto expected = checkpoints_.save(trained, step, /*stream=*/false);
    const auto save = value_or_throw(checkpoints_.begin(trained, step + 1, /*stream=*/true));
    start_pushing(trained);
    const auto found = checkpoints_.commit(*save, step + 1);
    stop();
    throw_if_error(found->verify());
    expect_same_state(*expected, *found);
    EXPECT_LE(save->stats().extra_bytes, uint64_t{64} << 20);
  }
}

TEST_F(StreamSavesTest, ASlowDiskHoldsChangesBackWhenThePoolIsFull) {
  TestServers servers(1, {.files = &files_});
  TrainedVariables trained(servers, 1, {{"w", {12'000'000}, "adam"}});
  trained.train(1);
  const auto expected = checkpoints_.save(trained, 1, /*stream=*/false);
  files_.set_open(false);
  const auto save = value_or_throw(checkpoints_.begin(trained, 2, /*stream=*/true));
  auto pushing = std::async(std::launch::async, [&] { trained.push(0, 3); });
  const auto found = checkpoints_.commit(*save, 2, [&](uint64_t, uint64_t) {
    if (save->stats().pool_wait_longest == Duration::zero()) return;
    // The pool has no room for the whole variable, so the push cannot be applied before the gate is
    // opened here.
    if (files_.waiting() > 0) {
      EXPECT_EQ(pushing.wait_for(seconds(0)), std::future_status::timeout);
    }
    files_.set_open(true);
  });
  pushing.get();
  expect_same_state(*expected, *found);
  EXPECT_GT(save->stats().pool_wait_longest, Duration::zero());
  EXPECT_GE(save->stats().pool_wait_total, save->stats().pool_wait_longest);
  EXPECT_LE(save->stats().extra_bytes, uint64_t{64} << 20);
}

TEST_F(StreamSavesTest, AFullDiskLetsChangesGoOnAtOnce) {
  TestServers servers(1, {.files = &files_});
  TrainedVariables trained(servers, 1, {{"w", {12'000'000}, "adam"}});
  files_.set_open(false);
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, /*stream=*/true));
  auto pushing = std::async(std::launch::async, [&] { trained.push(0, 3); });
  ASSERT_TRUE(wait_until([&] { return files_.waiting() > 0; }, seconds(20)));
  files_.set_full(true);
  const auto saved = save->wait();
  EXPECT_EQ(error_code(saved.status()), ErrorCode::kResourceExhausted) << saved.status();
  ASSERT_EQ(pushing.wait_for(seconds(20)), std::future_status::ready);
  pushing.get();
  const std::string file = checkpoints_.path() + "/ps-0-of-1.safetensors";
  EXPECT_TRUE(wait_until([&] { return !std::filesystem::exists(file); }, seconds(20)));
  files_.set_full(false);
  files_.set_open(true);
  throw_if_error(checkpoints_.save(trained, 2, /*stream=*/true)->verify());
}

TEST_F(StreamSavesTest, ADiskThatHangsFailsTheSaveAndLetsChangesGoOn) {
  TestServers servers(1, {.give_up_saves_after = milliseconds(500), .files = &files_});
  TrainedVariables trained(servers, 1, {{"w", {12'000'000}, "adam"}});
  files_.set_open(false);
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, /*stream=*/true));
  auto pushing = std::async(std::launch::async, [&] { trained.push(0, 3); });
  EXPECT_EQ(error_code(save->wait().status()), ErrorCode::kAborted);
  EXPECT_EQ(pushing.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_GT(files_.waiting(), 0);
  pushing.get();
  files_.set_open(true);
  const std::string file = checkpoints_.path() + "/ps-0-of-1.safetensors";
  EXPECT_TRUE(wait_until([&] { return !std::filesystem::exists(file); }, seconds(20)));
}

// A client asks for a save when all servers have begun. Until then none of them gives it up.
TEST_F(StreamSavesTest, IsNotGivenUpWhileAServerBegins) {
  TestServers servers(2, {.give_up_saves_after = seconds(1), .files = &files_});
  TrainedVariables trained(servers, 2, {{"w", {1000}, "adam"}});
  files_.hold_creation("ps-1-of-2");
  auto begun = std::async(std::launch::async,
                          [&] { return checkpoints_.begin(trained, 1, /*stream=*/true); });
  EXPECT_EQ(begun.wait_for(seconds(2)), std::future_status::timeout);
  files_.hold_creation("");
  const auto save = begun.get();
  ASSERT_TRUE(save.ok()) << save.status();
  throw_if_error(checkpoints_.commit(**save, 1)->verify());
}

TEST_F(StreamSavesTest, OneSaveAtATime) {
  TestServers servers(1, {.files = &files_});
  TrainedVariables trained(servers, 1, {{"w", {10}, ""}});
  files_.set_open(false);
  auto first = value_or_throw(checkpoints_.begin(trained, 1, /*stream=*/false));
  const auto second = checkpoints_.begin(trained, 2, /*stream=*/true);
  EXPECT_EQ(error_code(second.status()), ErrorCode::kFailedPrecondition) << second.status();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(first->wait({}, stop.get_token()).ok());
  files_.set_open(true);
  throw_if_error(checkpoints_.save(trained, 3, /*stream=*/true)->verify());
}

TEST_F(StreamSavesTest, EndsWithItsJob) {
  TestServers servers(1, {.files = &files_});
  TrainedVariables trained(servers, 1, {{"w", {10}, ""}}, "saved");
  files_.set_open(false);
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, /*stream=*/true));
  DropJobRequest drop;
  drop.set_job("saved");
  throw_if_error(trained.client().channel(0).call(kDropJob, make_message(drop)).status());
  EXPECT_EQ(error_code(save->wait().status()), ErrorCode::kAborted);
  files_.set_open(true);
  const std::string file = checkpoints_.path() + "/ps-0-of-1.safetensors";
  EXPECT_TRUE(wait_until([&] { return !std::filesystem::exists(file); }, seconds(20)));
}

TEST_F(StreamSavesTest, VariablesThatAreDeletedMeanwhileAreSaved) {
  TestServers servers(1, {.files = &files_});
  TrainedVariables trained(servers, 1, {{"w", {1000}, "adam"}});
  trained.train(2);
  const auto expected = trained.pull();
  files_.set_open(false);
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, /*stream=*/true));
  throw_if_error(trained.client().remove(trained.variables()));
  files_.set_open(true);
  EXPECT_TRUE(state_of(*checkpoints_.commit(*save, 1)).at("w").equal(expected[0]));
}

}  // namespace
}  // namespace trireme::internal
