// The threads of the library end before static objects are destroyed, so that what arrives while
// the process ends cannot use them.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/process_end.h"
#include "trireme/rpc/server.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kCalledBack = 7;

// Holds calls until it is told to answer them. Its server outlives static objects, like a server in
// another process.
class Holder final : public Service {
 public:
  std::vector<Method> methods() override {
    return {{"/test.Test/Hold", Roles::all(), Repeats::kHarmless,
             [this](ServerCall call) {
               held_.emplace(std::move(call));
               arrived_.set_value();
             }},
            {"/test.Test/Ping", Roles::all(), Repeats::kHarmless,
             [](ServerCall call) { call.respond(Message()); }}};
  }
  void wait() { arrived_.get_future().wait_for(seconds(10)); }
  void answer() { held_->respond(Message()); }

 private:
  std::promise<void> arrived_;
  std::optional<ServerCall> held_;
};

// Starts a server with the service, and returns a channel to it. To be called once in a process.
// Nothing of it is ever destroyed.
Channel* channel_to(Holder* holder) {
  std::vector<std::unique_ptr<Service>> services;
  services.emplace_back(holder);
  static auto* const server =
      value_or_throw(
          RpcServer::start({.address = "127.0.0.1:0", .task = "test"}, std::move(services)))
          .release();
  static auto* const channel = new Channel({.address = server->address()});
  return channel;
}

// Runs a function when static objects are destroyed.
struct AtDestruction {
  std::function<void()> run;
  ~AtDestruction() {
    if (run) run();
  }
};

class ProcessEndDeathTest : public testing::Test {
 protected:
  // A child begins anew, since the parent has threads.
  ProcessEndDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Ends the process while a call is in flight that is answered when static objects are destroyed.
// The call must be cancelled before. Returns the code kCalledBack if its answer still arrives.
void end_with_a_call_in_flight() {
  static AtDestruction destruction;
  auto* holder = new Holder;
  Channel* const channel = channel_to(holder);
  auto* answered = new std::atomic<bool>(false);
  channel->call("/test.Test/Hold", Message(), {.deadline = after(seconds(20))},
                [answered](const Response& response) {
                  if (error_code(response.status()) != ErrorCode::kCancelled) {
                    std::_Exit(kCalledBack);
                  }
                  *answered = true;
                });
  holder->wait();
  // The queue of this thread, which static objects cannot use any more.
  if (!channel->call("/test.Test/Ping", Message(), {.deadline = after(seconds(5))}).ok()) {
    std::_Exit(8);
  }
  destruction.run = [holder, channel, answered] {
    if (!*answered) std::_Exit(10);
    holder->answer();
    // Both answers come on one connection, and the second is received by this thread.
    for (int i = 0; i < 20; ++i) {
      const Response pong =
          channel->call("/test.Test/Ping", Message(), {.deadline = after(seconds(5))});
      if (!pong.ok()) std::_Exit(8);
    }
  };
  std::exit(0);
}

TEST_F(ProcessEndDeathTest, NoAnswerIsHandledOnceStaticObjectsAreDestroyed) {
  EXPECT_EXIT(end_with_a_call_in_flight(), testing::ExitedWithCode(0), "");
}

// A static object may make calls when it is destroyed, and must not wait for ever.
void call_when_static_objects_are_destroyed() {
  static AtDestruction destruction;
  auto* holder = new Holder;
  Channel* const channel = channel_to(holder);
  channel->call("/test.Test/Ping", Message(), {.deadline = after(seconds(20))},
                [](const Response&) {});
  destruction.run = [channel] {
    channel->call("/test.Test/Ping", Message(), {.deadline = after(seconds(20))},
                  [](const Response& response) {
                    std::_Exit(error_code(response.status()) == ErrorCode::kCancelled ? 0 : 9);
                  });
  };
  std::exit(1);
}

TEST_F(ProcessEndDeathTest, LaterCallsFailAtOnce) {
  EXPECT_EXIT(call_when_static_objects_are_destroyed(), testing::ExitedWithCode(0), "");
}

// Work that waits for a time must not keep a thread that waits for the work from ending.
void end_before_a_time() {
  static bool ran = false;
  static AtDestruction destruction{[] { std::_Exit(ran ? 0 : 9); }};
  run_at(after(seconds(1000)), [] { ran = true; });
  std::exit(1);
}

TEST_F(ProcessEndDeathTest, RunsWhatWaitsForATime) {
  EXPECT_EXIT(end_before_a_time(), testing::ExitedWithCode(0), "");
}

// Connections are still encrypted while the process ends.
void use_openssl_at_the_end() {
  at_process_end(EndStep::kWork, [] { std::_Exit(OPENSSL_init_ssl(0, nullptr) == 1 ? 0 : 9); });
  OPENSSL_init_ssl(0, nullptr);
  std::exit(1);
}

TEST_F(ProcessEndDeathTest, EndsBeforeOpenSsl) {
  EXPECT_EXIT(use_openssl_at_the_end(), testing::ExitedWithCode(0), "");
}

// A child has no threads that could end.
void end_in_a_child() {
  static Time begin = {};
  static AtDestruction destruction{
      [] { std::_Exit(Clock::real().now() - begin < seconds(1) ? 0 : 9); }};
  std::promise<void> ran;
  run_at(after(Duration(0)), [&ran] { ran.set_value(); });
  ran.get_future().wait();
  begin = Clock::real().now();
  const pid_t child = fork();
  if (child == 0) std::exit(1);
  int status = 0;
  waitpid(child, &status, 0);
  std::_Exit(WEXITSTATUS(status));
}

TEST_F(ProcessEndDeathTest, AChildEndsAtOnce) {
  EXPECT_EXIT(end_in_a_child(), testing::ExitedWithCode(0), "");
}

// The end of an object that a callback held is work that must not be lost.
void end_during_work() {
  static bool done = false;
  static AtDestruction destruction{[] { std::_Exit(done ? 0 : 9); }};
  std::promise<void> begun;
  run_at(after(Duration(0)), [&begun] {
    run_blocking([&begun] {
      begun.set_value();
      block_until(after(milliseconds(200)));
      done = true;
    });
  });
  begun.get_future().wait();
  std::exit(1);
}

TEST_F(ProcessEndDeathTest, WaitsForWorkThatHasBegun) {
  EXPECT_EXIT(end_during_work(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace trireme::internal
