#include "trireme/coordinator/server_fence.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/testing/manual_clock.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;

// Servers that answer when the test says so. Used by one thread.
class ManualServers final : public FencedServers {
 public:
  std::vector<Server> raise(uint64_t below) override {
    raised.push_back(below);
    return servers;
  }
  void send(size_t server, uint64_t below, Time deadline,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    EXPECT_EQ(raised.back(), below) << "renewals must carry the fence before it is sent";
    EXPECT_EQ(deadline, servers[server].lease_end + ServerFence::kMargin);
    calls.emplace(server, std::move(done));
  }

  // Answers the oldest call to a server.
  void answer(size_t server, const absl::Status& status = absl::OkStatus()) {
    const auto call = calls.lower_bound(server);
    ASSERT_TRUE(call != calls.end() && call->first == server);
    auto done = std::move(call->second);
    calls.erase(call);
    done(status);
  }

  std::vector<Server> servers;
  std::vector<uint64_t> raised;
  std::multimap<size_t, absl::AnyInvocable<void(const absl::Status&)>> calls;
};

class ServerFenceTest : public testing::Test {
 protected:
  ServerFenceTest() {
    servers_->servers = {{"/job:ps/task:0", clock_.now() + seconds(2)},
                         {"/job:ps/task:1", clock_.now() + seconds(3)}};
  }
  void raise(uint64_t below) {
    fence_->raise(below, [this, below](const std::vector<std::string>& unconfirmed) {
      complete_.push_back(below);
      unconfirmed_ = unconfirmed;
    });
  }
  // Moves the clock and runs the timers that are due.
  void advance(Duration duration) {
    clock_.advance(duration);
    while (!timers_.empty() && timers_.begin()->first <= clock_.now()) {
      auto timer = timers_.extract(timers_.begin());
      timer.mapped()();
    }
  }
  static absl::Status silence() {
    return make_status(ErrorCode::kTaskUnreachable, "it cannot be reached");
  }

  ManualClock clock_;
  std::multimap<Time, Work> timers_;
  const std::shared_ptr<ManualServers> servers_ = std::make_shared<ManualServers>();
  const std::shared_ptr<ServerFence> fence_ = std::make_shared<ServerFence>(
      servers_, [this](Time time, Work work) { timers_.emplace(time, std::move(work)); });
  std::vector<uint64_t> complete_;        // Fences that are complete.
  std::vector<std::string> unconfirmed_;  // Servers that did not confirm the last of these.
};

TEST_F(ServerFenceTest, IsCompleteWhenAllServersHaveConfirmed) {
  raise(5);
  EXPECT_EQ(servers_->calls.size(), 2u);
  servers_->answer(1);
  EXPECT_TRUE(complete_.empty());
  EXPECT_EQ(fence_->awaited(), std::vector<std::string>{"/job:ps/task:0"});
  servers_->answer(0);
  EXPECT_TRUE(fence_->awaited().empty());
  EXPECT_EQ(complete_, std::vector<uint64_t>{5});
  EXPECT_TRUE(unconfirmed_.empty());
  EXPECT_TRUE(timers_.empty());
}

TEST_F(ServerFenceTest, WaitsUntilTheLeaseAtASilentServerHasRunOut) {
  raise(5);
  servers_->answer(0);
  servers_->answer(1, silence());
  EXPECT_TRUE(complete_.empty());
  advance(seconds(3));
  EXPECT_TRUE(complete_.empty()) << "clocks may differ by the margin";
  advance(ServerFence::kMargin);
  EXPECT_EQ(complete_, std::vector<uint64_t>{5});
  EXPECT_EQ(unconfirmed_, std::vector<std::string>{"/job:ps/task:1"})
      << "the server may have been frozen while it applied an update";
}

TEST_F(ServerFenceTest, IsNotConfirmedByAServerThatAnswersAfterOneDidNot) {
  raise(5);
  servers_->answer(0, silence());
  advance(seconds(2) + ServerFence::kMargin);
  EXPECT_TRUE(complete_.empty());
  servers_->answer(1);
  EXPECT_EQ(complete_, std::vector<uint64_t>{5});
  EXPECT_EQ(unconfirmed_, std::vector<std::string>{"/job:ps/task:0"});
}

TEST_F(ServerFenceTest, AServerThatRejectsUpdatesAnywayCountsAsFenced) {
  for (const ErrorCode code :
       {ErrorCode::kIncarnationChanged, ErrorCode::kAborted, ErrorCode::kNotFound}) {
    complete_.clear();
    raise(5);
    servers_->answer(0);
    servers_->answer(1, make_status(code, "it knows no such writer"));
    EXPECT_EQ(complete_.size(), 1u) << static_cast<int>(code);
    // A server of another incarnation has lost its variables. The others did not say that no update
    // is being applied.
    EXPECT_EQ(unconfirmed_.empty(), code == ErrorCode::kIncarnationChanged);
  }
}

TEST_F(ServerFenceTest, DoesNotWaitForALostServer) {
  raise(5);
  servers_->answer(0);
  fence_->note_lost("/job:worker/task:1");
  EXPECT_TRUE(complete_.empty());
  fence_->note_lost("/job:ps/task:1");
  EXPECT_EQ(complete_, std::vector<uint64_t>{5});
  EXPECT_TRUE(unconfirmed_.empty()) << "the variables of the lost server are gone";
  servers_->answer(1, silence());
  advance(seconds(10));
  EXPECT_EQ(complete_.size(), 1u) << "calls back once";

  raise(6);
  EXPECT_EQ(servers_->calls.size(), 1u);
  servers_->answer(0);
  EXPECT_EQ(complete_, (std::vector<uint64_t>{5, 6}));
  fence_->note_lost("/job:ps/task:0");
  raise(7);
  EXPECT_EQ(complete_.size(), 3u) << "no server is left";
}

TEST_F(ServerFenceTest, FencesAreIndependent) {
  raise(5);
  raise(6);
  servers_->answer(0);
  servers_->answer(1, silence());
  servers_->answer(0);
  EXPECT_TRUE(complete_.empty());
  servers_->answer(1);
  EXPECT_EQ(complete_, std::vector<uint64_t>{6});
  advance(seconds(4));
  EXPECT_EQ(complete_, (std::vector<uint64_t>{6, 5}));
}

}  // namespace
}  // namespace trireme::internal
