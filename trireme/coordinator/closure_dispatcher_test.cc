#include "trireme/coordinator/closure_dispatcher.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/wait_until.h"

// A dispatcher with a worker that answers when the test says so. Closures that fail are taken by
// the test itself, on behalf of another worker.
namespace trireme::internal {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

constexpr char kDispatchedWorker[] = "/job:worker/task:0";
constexpr auto kDispatchLimit = seconds(20);

// The state of the worker, which its service shares with the test. Thread-safe.
class HoldingWorker {
 public:
  void hold(ServerCall call) {
    MutexLock lock(mutex_);
    held_.emplace(std::move(call));
  }
  bool holds_registration() const {
    MutexLock lock(mutex_);
    return held_.has_value();
  }
  void answer_registration() {
    std::optional<ServerCall> call;
    {
      MutexLock lock(mutex_);
      call.swap(held_);
    }
    if (call) call->respond(make_message(RegisterFunctionResponse()));
  }

  // Answers a batch, or holds its call until hold_batches(false) is called.
  void run(ServerCall call) {
    const auto request = value_or_throw(parse_body<RunClosuresRequest>(call.request()));
    RunClosuresResponse response;
    MutexLock lock(mutex_);
    batches_[request.batch()] = request.after();
    for (const ClosureRequest& closure : request.closures()) {
      ran_.push_back(closure.sequence());
      response.add_results();
    }
    if (!holds_batches_) return call.respond(make_message(response));
    held_batches_.emplace_back(std::move(call), make_message(response));
  }
  void hold_batches(bool hold) {
    std::vector<std::pair<ServerCall, Message>> held;
    {
      MutexLock lock(mutex_);
      holds_batches_ = hold;
      if (!hold) held.swap(held_batches_);
    }
    for (auto& [call, response] : held) call.respond(std::move(response));
  }
  // Returns the batches that it was sent, and for each the one that it follows.
  std::map<uint64_t, uint64_t> batches() const {
    MutexLock lock(mutex_);
    return batches_;
  }
  // Returns the sequences of the closures that it was sent, in order.
  std::vector<uint64_t> ran() const {
    MutexLock lock(mutex_);
    return ran_;
  }

 private:
  mutable Mutex mutex_;
  std::optional<ServerCall> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> ran_ ABSL_GUARDED_BY(mutex_);
  bool holds_batches_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<ServerCall, Message>> held_batches_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> batches_ ABSL_GUARDED_BY(mutex_);
};

class HoldingService final : public Service {
 public:
  explicit HoldingService(HoldingWorker& worker) : worker_(worker) {}

  std::vector<Method> methods() override {
    const auto answer_empty = [](ServerCall call) { call.respond(Message()); };
    return {{kConnectCoordinator, Roles::all(), Repeats::kHarmless, answer_empty},
            {kCancelClosures, Roles::all(), Repeats::kHarmless, answer_empty},
            {kDisconnectCoordinator, Roles::all(), Repeats::kHarmless, answer_empty},
            {kRegisterFunction, Roles::all(), Repeats::kHarmless,
             [this](ServerCall call) { worker_.hold(std::move(call)); }},
            {kRunClosures, Roles::all(), Repeats::kHarmless,
             [this](ServerCall call) { worker_.run(std::move(call)); }}};
  }

 private:
  HoldingWorker& worker_;
};

class OtherTaker final : public ClosureTaker {
 public:
  bool on_closures() override { return false; }
  int worker() const override { return 1; }
  bool is_idle() const override { return true; }
};

class ClosureDispatcherTest : public testing::Test {
 protected:
  ClosureDispatcherTest() { dispatcher_->start(); }
  ~ClosureDispatcherTest() override {
    worker_.answer_registration();
    worker_.hold_batches(false);
    queue_->close(make_status(ErrorCode::kCancelled, "the test has ended"));
    dispatcher_->end();
  }

  std::unique_ptr<RpcServer> start_worker() {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::make_unique<HoldingService>(worker_));
    return value_or_throw(
        RpcServer::start({.address = "127.0.0.1:0", .task = kDispatchedWorker, .incarnation = 5},
                         std::move(services)));
  }
  std::shared_ptr<const LinkContext> make_context() {
    auto context = std::make_shared<LinkContext>();
    context->queue = queue_;
    context->health_checker = std::make_shared<HealthChecker>();
    context->servers =
        std::make_shared<PsWatch>(ClusterSpec(), Credentials::loopback(), std::vector<uint64_t>(),
                                  context->health_checker, queue_);
    context->resources = std::make_shared<WorkerResources>([] { return 1; });
    context->stragglers = std::make_shared<StragglerWatch>();
    context->functions = std::make_shared<FunctionsInUse>();
    return context;
  }
  ClosurePtr put() {
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = function_;
    EXPECT_TRUE(queue_->put(closure).ok());
    return closure;
  }

  HoldingWorker worker_;
  const std::unique_ptr<RpcServer> server_ = start_worker();
  const std::shared_ptr<ClosureFunction> function_ = std::make_shared<ClosureFunction>();
  // Abandons closures in flight as soon as there is an error.
  const std::shared_ptr<ClosureQueue> queue_ =
      std::make_shared<ClosureQueue>(100, ClosureQueueOptions{.cancel_time = Duration::zero()});
  const std::shared_ptr<ClosureDispatcher> dispatcher_ =
      ClosureDispatcher::create(make_context(), 0,
                                std::make_shared<Channel>(ChannelOptions{
                                    .address = server_->address(), .task = kDispatchedWorker}),
                                [](uint64_t) {});
};

TEST_F(ClosureDispatcherTest, DoesNotSendClosuresThatWereAbandonedWhileTheWorkerWasSupplied) {
  const auto abandoned = put();
  ASSERT_TRUE(wait_until([&] { return worker_.holds_registration(); }, kDispatchLimit));
  const auto failed = put();
  ASSERT_EQ(queue_->take(std::make_shared<OtherTaker>(), minutes(1)), std::vector{failed});
  const absl::Status error = make_status(ErrorCode::kInternal, "it failed");
  std::vector<ClosureQueue::Finished> finished;
  finished.push_back({failed, error});
  EXPECT_NE(queue_->finish(std::move(finished)), 0u);
  EXPECT_EQ(queue_->join(after(kDispatchLimit)), error);

  worker_.answer_registration();
  const auto next = put();
  EXPECT_EQ(queue_->join(after(kDispatchLimit)), absl::OkStatus());
  EXPECT_EQ(worker_.ran(), std::vector{next->sequence});
  EXPECT_EQ(error_code(queue_->fetch(*abandoned).status()), ErrorCode::kCancelled);
}

// The worker lets a batch take its turns after the one that it follows.
TEST_F(ClosureDispatcherTest, NamesTheBatchBeforeUnlessThatWasAnswered) {
  worker_.hold_batches(true);
  put();
  ASSERT_TRUE(wait_until([&] { return worker_.holds_registration(); }, kDispatchLimit));
  put();
  worker_.answer_registration();
  ASSERT_TRUE(wait_until([&] { return worker_.batches().size() == 2; }, kDispatchLimit));
  worker_.hold_batches(false);
  EXPECT_EQ(queue_->join(after(kDispatchLimit)), absl::OkStatus());
  put();
  EXPECT_EQ(queue_->join(after(kDispatchLimit)), absl::OkStatus());
  EXPECT_EQ(worker_.batches(), (std::map<uint64_t, uint64_t>{{1, 0}, {2, 1}, {3, 0}}));
}

}  // namespace
}  // namespace trireme::internal
