#include "trireme/rpc/call_all.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/call_group.h"
#include "trireme/rpc/server.h"

namespace trireme {
namespace {

using std::chrono::seconds;

constexpr char kNumber[] = "/test.Test/Number";

// Answers with its number, or with an error if the request is "fail". If it is "hold", passes the
// call to the test, which answers it.
class NumberedService final : public Service {
 public:
  NumberedService(size_t number, std::promise<ServerCall>& held) : number_(number), held_(held) {}

  std::vector<Method> methods() override {
    return {{kNumber, Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
               const std::string body = call.request().body;
               if (body == "hold") return held_.set_value(std::move(call));
               if (body == "fail") {
                 return call.respond(make_status(ErrorCode::kNotFound, "no such thing"));
               }
               call.respond(Message{absl::StrCat(body, number_), {}});
             }}};
  }

 private:
  const size_t number_;
  std::promise<ServerCall>& held_;
};

class CallAllTest : public testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < 3; ++i) {
      const std::string task = absl::StrCat("/job:ps/task:", i);
      std::vector<std::unique_ptr<Service>> services;
      services.push_back(std::make_unique<NumberedService>(i, held_));
      servers_.push_back(value_or_throw(RpcServer::start(
          {.address = "127.0.0.1:0", .task = task, .incarnation = 1}, std::move(services))));
      channels_.push_back(std::make_unique<Channel>(
          ChannelOptions{.address = servers_.back()->address(), .task = task}));
    }
  }

  // Makes one call to each server.
  std::vector<TargetedCall> calls(const std::vector<std::string>& bodies) const {
    std::vector<TargetedCall> calls;
    for (size_t i = 0; i < bodies.size(); ++i) {
      calls.push_back(
          {channels_[i].get(), Message{bodies[i], {}}, {.deadline = after(seconds(30))}});
    }
    return calls;
  }

  std::promise<ServerCall> held_;
  std::vector<std::unique_ptr<RpcServer>> servers_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

TEST_F(CallAllTest, ReturnsResponsesInTheOrderOfTheCalls) {
  auto result = std::make_shared<std::promise<absl::StatusOr<Responses>>>();
  auto done = std::make_shared<std::atomic<int>>(0);
  call_all(kNumber, calls({"hold", "b", "c"}), [=](absl::StatusOr<Responses> responses) {
    ++*done;
    result->set_value(std::move(responses));
  });
  std::future<ServerCall> held = held_.get_future();
  ASSERT_EQ(held.wait_for(seconds(30)), std::future_status::ready);
  EXPECT_EQ(*done, 0) << "one has not answered";
  held.get().respond(Message{"a0", {}});
  const Responses responses = value_or_throw(result->get_future().get());
  ASSERT_EQ(responses.size(), 3u);
  EXPECT_EQ(responses[0].body, "a0");
  EXPECT_EQ(responses[1].body, "b1");
  EXPECT_EQ(responses[2].body, "c2");
  EXPECT_EQ(*done, 1);
}

TEST_F(CallAllTest, ReturnsAnErrorThatNamesItsTask) {
  const absl::Status status = call_all(kNumber, calls({"a", "fail", "c"})).status();
  EXPECT_EQ(error_code(status), ErrorCode::kNotFound);
  EXPECT_EQ(error_origin(status).task, "/job:ps/task:1");
  EXPECT_EQ(describe(status), "/job:ps/task:1: no such thing");
}

TEST_F(CallAllTest, NamesAnUnreachableServer) {
  servers_[2].reset();
  const absl::Status status = call_all(kNumber, calls({"a", "b", "c"})).status();
  EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable);
  EXPECT_EQ(error_origin(status).task, "/job:ps/task:2");
}

TEST(CallAll, WithoutCallsCallsBackAtOnce) {
  bool done = false;
  call_all(kNumber, {}, [&](absl::StatusOr<Responses> responses) {
    done = responses.ok() && responses->empty();
  });
  EXPECT_TRUE(done);
  EXPECT_TRUE(value_or_throw(call_all(kNumber, {})).empty());
}

TEST(CallGroup, KeepsTheFirstErrorToArrive) {
  CallGroup group(3);
  EXPECT_EQ(group.on_answer(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(group.on_answer(absl::NotFoundError("first")), std::nullopt);
  EXPECT_EQ(group.on_answer(absl::AbortedError("second")), absl::NotFoundError("first"));
}

TEST(CallGroup, StartsEachCallAndWaitsForAll) {
  EXPECT_TRUE(call_each_and_wait(0, [](size_t, auto) { FAIL(); }).ok());
  std::vector<std::future<void>> answers;
  std::vector<size_t> started;
  const absl::Status status = call_each_and_wait(3, [&](size_t call, auto done) {
    started.push_back(call);
    if (call == 1) return done(absl::NotFoundError("at once"));
    answers.push_back(std::async(std::launch::async, [=] { done(absl::OkStatus()); }));
  });
  EXPECT_EQ(status, absl::NotFoundError("at once"));
  EXPECT_EQ(started, (std::vector<size_t>{0, 1, 2}));
}

}  // namespace
}  // namespace trireme
