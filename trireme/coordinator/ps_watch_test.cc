#include "trireme/coordinator/ps_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "trireme/base/status.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/tcp_proxy.h"

namespace trireme::internal {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr char kWatchedServer[] = "/job:ps/task:0";
constexpr uint64_t kWatchedIncarnation = 7;

std::unique_ptr<RpcServer> start_watched_server(uint64_t incarnation = kWatchedIncarnation) {
  return value_or_throw(RpcServer::start(
      {.address = "127.0.0.1:0", .task = kWatchedServer, .incarnation = incarnation}, {}));
}

absl::Status server_error(ErrorCode code) {
  return make_status(code, "the worker could not use it", {kWatchedServer, ""});
}

// Waits for closures on behalf of one worker, and tells the test once it is notified.
class NotifiedTaker final : public ClosureTaker {
 public:
  explicit NotifiedTaker(int worker) : worker_(worker) {}
  bool on_closures() override {
    notified_.set_value();
    return true;
  }
  int worker() const override { return worker_; }
  bool is_idle() const override { return true; }

  bool was_notified_within(Duration time) {
    return future_.wait_for(time) == std::future_status::ready;
  }

 private:
  const int worker_;
  std::promise<void> notified_;
  std::future<void> future_ = notified_.get_future();
};

class PsWatchTest : public testing::Test {
 protected:
  PsWatchTest() {
    for (int worker : {0, 1}) queue_->add_worker(worker);
  }
  std::unique_ptr<PsWatch> watch(const std::string& address) const {
    return std::make_unique<PsWatch>(ClusterSpec{{"ps", {address}}}, Credentials::loopback(),
                                     std::vector<uint64_t>{kWatchedIncarnation},
                                     std::make_shared<HealthChecker>(), queue_);
  }
  // Returns true if the watch finds the server lost.
  static std::future<bool> check(PsWatch& watched) {
    auto lost = std::make_shared<std::promise<bool>>();
    watched.check_server(server_error(ErrorCode::kTaskUnreachable),
                         [lost](bool is_lost) { lost->set_value(is_lost); });
    return lost->get_future();
  }
  // Schedules closures and takes them for worker 0.
  std::vector<ClosurePtr> take_for_first(int count) {
    for (int i = 0; i < count; ++i) {
      auto closure = std::make_shared<Closure>();
      closure->function = closure->current = function_;
      EXPECT_TRUE(queue_->put(closure).ok());
    }
    return queue_->take(first_, minutes(1));
  }

  const std::shared_ptr<ClosureFunction> function_ = std::make_shared<ClosureFunction>();
  const std::shared_ptr<ClosureQueue> queue_ = std::make_shared<ClosureQueue>(100);
  const std::shared_ptr<NotifiedTaker> first_ = std::make_shared<NotifiedTaker>(0);
  const std::shared_ptr<NotifiedTaker> second_ = std::make_shared<NotifiedTaker>(1);
};

TEST_F(PsWatchTest, AServerThatRefusesConnectionsIsLostAtOnce) {
  const auto port = value_or_throw(PortReservation::make());  // Nothing listens there.
  const auto watched = watch(port.address());
  auto lost = check(*watched);
  // Any other silence has 15 s.
  ASSERT_EQ(lost.wait_for(seconds(10)), std::future_status::ready);
  EXPECT_TRUE(lost.get());
  EXPECT_EQ(error_code(queue_->status()), ErrorCode::kDataLoss);
  EXPECT_EQ(error_origin(queue_->status()).task, kWatchedServer);
}

TEST_F(PsWatchTest, AServerOfAnotherIncarnationIsLostAtOnce) {
  const auto server = start_watched_server(8);
  const auto watched = watch(server->address());
  auto lost = check(*watched);
  ASSERT_EQ(lost.wait_for(seconds(10)), std::future_status::ready);
  EXPECT_TRUE(lost.get());
}

TEST_F(PsWatchTest, AServerThatIsUnreachableForSecondsIsNotLost) {
  const auto server = start_watched_server();
  TcpProxy proxy(server->address());
  proxy.set_cut(1);  // Every connection breaks, which is not a refusal.
  const auto watched = watch(proxy.address());
  auto lost = check(*watched);
  EXPECT_EQ(lost.wait_for(seconds(4)), std::future_status::timeout);
  proxy.set_cut(0);
  ASSERT_EQ(lost.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_FALSE(lost.get());
  EXPECT_EQ(queue_->status(), absl::OkStatus());
}

TEST_F(PsWatchTest, ClosuresGoToAnotherWorkerIfTheServerAnswers) {
  const auto server = start_watched_server();
  const auto watched = watch(server->address());
  const auto closures = take_for_first(3);
  ASSERT_EQ(closures.size(), 3u);
  for (const auto& taker : {first_, second_}) EXPECT_TRUE(queue_->take(taker).empty());
  watched->check_and_requeue(server_error(ErrorCode::kTaskUnreachable), 0, closures);
  ASSERT_TRUE(second_->was_notified_within(seconds(20)));
  EXPECT_FALSE(first_->was_notified_within(seconds(0)));
  EXPECT_TRUE(queue_->take(first_, minutes(1)).empty());
  EXPECT_EQ(queue_->take(second_, minutes(1)), closures);
}

TEST_F(PsWatchTest, ClosuresWhosePushesWereRejectedMayRunAnywhere) {
  const auto server = start_watched_server();
  const auto watched = watch(server->address());
  const absl::Status rejected = server_error(ErrorCode::kAborted);
  EXPECT_TRUE(watched->is_server_failure(rejected));
  EXPECT_TRUE(watched->is_rejection(rejected));
  EXPECT_FALSE(watched->is_rejection(server_error(ErrorCode::kTaskUnreachable)));
  const auto closures = take_for_first(2);
  EXPECT_TRUE(queue_->take(first_).empty());
  watched->check_and_requeue(rejected, 0, closures);
  ASSERT_TRUE(first_->was_notified_within(seconds(20)));
  EXPECT_EQ(queue_->take(first_, minutes(1)), closures);
}

TEST_F(PsWatchTest, RejectedPushesAreLoggedNowAndThen) {
  const auto server = start_watched_server();
  const auto watched = watch(server->address());
  const auto closures = take_for_first(3);
  EXPECT_TRUE(queue_->take(first_).empty());
  testing::internal::CaptureStderr();
  const Time begin = Clock::real().now();
  for (const ClosurePtr& closure : closures) {
    watched->check_and_requeue(server_error(ErrorCode::kAborted), 0, {closure});
  }
  const bool is_quick = Clock::real().now() - begin < seconds(1);  // on a machine that is not busy
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("/job:ps/task:0 has rejected updates of /job:worker/task:0"));
  EXPECT_TRUE(!is_quick || log.find("has rejected") == log.rfind("has rejected")) << log;
}

TEST_F(PsWatchTest, AnErrorDoesNotWaitForTheCheckOfAServer) {
  const auto server = start_watched_server();
  TcpProxy proxy(server->address());
  proxy.block(Direction::kToServer, true);
  const auto watched = watch(proxy.address());
  const auto closures = take_for_first(2);
  std::vector<ClosureQueue::Finished> failed;
  failed.push_back({closures[0], make_status(ErrorCode::kInternal, "it failed")});
  EXPECT_NE(queue_->finish(std::move(failed)), 0u);
  watched->check_and_requeue(server_error(ErrorCode::kTaskUnreachable), 0, {closures[1]});
  EXPECT_TRUE(queue_->is_decided(*closures[1]));
  EXPECT_THAT(describe(queue_->join(after(seconds(20)))), HasSubstr("it failed"));
}

TEST_F(PsWatchTest, ErrorsOfOtherTasksAreNotServerFailures) {
  const auto port = value_or_throw(PortReservation::make());
  const auto watched = watch(port.address());
  for (const char* task : {"/job:worker/task:0", "/job:ps/task:1", ""}) {
    EXPECT_FALSE(watched->is_server_failure(
        make_status(ErrorCode::kTaskUnreachable, "it is gone", {task, ""})));
  }
  EXPECT_FALSE(watched->is_server_failure(server_error(ErrorCode::kInvalidArgument)));
}

}  // namespace
}  // namespace trireme::internal
