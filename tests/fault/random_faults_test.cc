// Every closure counts once while workers are killed, frozen and cut off from the coordinator or
// from a server at random, while the client program is frozen, and while it is killed and started
// again. TRIREME_HURTS sets the number of faults, TRIREME_RESUMES how often the client program is
// killed, and TRIREME_SEED the order of the faults.
//
// The client program (job_client.cc) always has closures in flight. It prints a ledger: the values
// that it found, and how many updates it has sent and how many were acknowledged since. A program
// that continues must find all acknowledged updates, and no more than were sent. From then on no
// update of an earlier program may be applied: at its end, the values must be those that it found
// plus its own updates.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fault/client_process.h"
#include "tests/fault/network_cuts.h"
#include "tests/fault/network_fixture.h"
#include "trireme/testing/setting.h"
#include "trireme/testing/wait_until.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const int64_t kFaultSeed = setting("TRIREME_SEED", 23);

class RandomFaults : public NetworkFixture {
 protected:
  void SetUp() override {
    NetworkFixture::SetUp();
    if (IsSkipped()) return;
    options_ = {
        .job = "ads", .certs = folder_.path(), .network = &*network_, .host = network_->add_host()};
    client_.emplace(cluster_->spec(), options_);
    begin_ = client_->begin();
    EXPECT_EQ(begin_, (std::vector<int64_t>{0, 0}));
    options_.resume = true;
  }
  // Waits for all servers: one that has just been started cannot be asked to stop yet.
  void TearDown() override {
    NetworkFixture::TearDown();
    if (cluster_) cluster_->wait_until_up();
  }

  // A fault, which lasts until it is undone.
  struct Fault {
    std::string what;
    std::function<void()> undo;
  };
  Fault inject() {
    const TaskId worker{"worker", static_cast<int>(random_() % 2)};
    const TaskId ps{"ps", static_cast<int>(random_() % 2)};
    const NetworkCut cut = std::vector{kCutBothWays, kCutThere, kCutBack}[random_() % 3];
    switch (random_() % 5) {
      case 0:
        cluster_->kill(worker);
        return {"kill " + worker.to_string(), [=, this] { cluster_->start(worker); }};
      case 1:
        cluster_->freeze(worker);
        return {"freeze " + worker.to_string(), [=, this] { cluster_->thaw(worker); }};
      case 2:
        cut.apply(*network_, options_.host, cluster_->host(worker));
        return {absl::StrCat("cut client and ", worker.to_string(), " ", cut.name),
                [this] { network_->heal(); }};
      case 3:
        cut.apply(*network_, cluster_->host(worker), cluster_->host(ps));
        return {absl::StrCat("cut ", worker.to_string(), " and ", ps.to_string(), " ", cut.name),
                [this] { network_->heal(); }};
      default:
        client_->freeze();
        return {"freeze the client program", [this] { client_->thaw(); }};
    }
  }

  // Blocks for a random time of at most twice the lease, during which the client must not end.
  void hold() {
    const milliseconds time(random_() % 6000);
    ASSERT_FALSE(client_->ends_within(time)) << client_->text();
  }

  // Kills the client program in the midst of whatever goes on, and starts it again.
  void resume_client() {
    client_->kill();
    const int64_t sent = client_->sent(), done = client_->done();
    client_.emplace(cluster_->spec(), options_);
    const std::vector<int64_t> found = client_->begin();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_GE(found[i], begin_[i] + done) << "an acknowledged update is lost";
      EXPECT_LE(found[i], begin_[i] + sent) << "an update was applied twice";
    }
    begin_ = found;
  }

  void hurt(int64_t faults, int64_t resumes) {
    SCOPED_TRACE(absl::StrCat("TRIREME_SEED=", kFaultSeed));
    for (int64_t i = 0, resumed = 0; i < faults; ++i) {
      const Fault fault = inject();
      SCOPED_TRACE(absl::StrCat("fault ", i, ": ", fault.what));
      ASSERT_NO_FATAL_FAILURE(hold());
      // Spreads the resumes evenly, each in the midst of a fault.
      if ((i + 1) * resumes / faults > resumed) {
        resume_client();
        ++resumed;
      }
      fault.undo();
      // At least one closure is done after each fault.
      const int64_t done = client_->done();
      ASSERT_TRUE(wait_until([&] { return client_->done() > done; }, seconds(60)))
          << client_->text();
    }
    const std::vector<int64_t> end = client_->end(/*stop=*/true);
    for (size_t i = 0; i < end.size(); ++i) EXPECT_EQ(end[i], begin_[i] + client_->sent()) << i;
  }

  std::mt19937 random_{static_cast<uint32_t>(kFaultSeed)};
  ClientProcessOptions options_;
  std::optional<ClientProcess> client_;
  std::vector<int64_t> begin_;  // Values that the client program found.
};

TEST_F(RandomFaults, EachClosureCountsOnce) {
  hurt(setting("TRIREME_HURTS", 1), 0);
}

TEST_F(RandomFaults, EachClosureCountsOnceWhileTheClientIsKilledAndResumed) {
  hurt(setting("TRIREME_HURTS", 2), setting("TRIREME_RESUMES", 1));
}

}  // namespace
}  // namespace trireme
