#include "trireme/runtime/health_checker.h"

#include <gtest/gtest.h>

#include <future>

#include "trireme/base/status.h"
#include "trireme/rpc/port_reservation.h"
#include "trireme/rpc/server.h"
#include "trireme/testing/tcp_proxy.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr char kCheckedTask[] = "/job:worker/task:1";
constexpr uint64_t kCheckedIncarnation = 77;

std::unique_ptr<RpcServer> start_checked_server(const std::string& address,
                                                Metrics* metrics = nullptr) {
  return value_or_throw(RpcServer::start({.address = address,
                                          .task = kCheckedTask,
                                          .incarnation = kCheckedIncarnation,
                                          .metrics = metrics},
                                         {}));
}

std::shared_ptr<Channel> channel_to(const std::string& address) {
  return std::make_shared<Channel>(ChannelOptions{.address = address, .task = kCheckedTask});
}

class HealthCheckerTest : public testing::Test {
 protected:
  std::future<absl::Status> check(const std::shared_ptr<Channel>& channel,
                                  const HealthCheckLimits& limits,
                                  uint64_t incarnation = kCheckedIncarnation) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    checker_->check(channel, incarnation, limits,
                    [answer](const absl::Status& status) { answer->set_value(status); });
    return answer->get_future();
  }

  const std::shared_ptr<HealthChecker> checker_ = std::make_shared<HealthChecker>();
};

// Returns the answer of a check, which must come soon.
absl::Status answer_of(std::future<absl::Status>& check) {
  if (check.wait_for(seconds(20)) != std::future_status::ready) {
    return make_status(ErrorCode::kUnknown, "the check did not end in time");
  }
  return check.get();
}

TEST_F(HealthCheckerTest, EachAskerHasItsOwnLimit) {
  const auto server = start_checked_server("127.0.0.1:0");
  TcpProxy proxy(server->address());
  proxy.block(Direction::kToServer, true);
  const auto channel = channel_to(proxy.address());
  // A step that ends soon asks first, and then one that has minutes.
  auto soon = check(channel, {.limit = after(milliseconds(100))});
  auto later = check(channel, {.limit = after(minutes(10)), .unreachable_time = {}});
  EXPECT_EQ(error_code(answer_of(soon)), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(later.wait_for(milliseconds(300)), std::future_status::timeout)
      << "it got the answer of another asker";
  proxy.block(Direction::kToServer, false);
  EXPECT_EQ(answer_of(later), absl::OkStatus());
}

TEST_F(HealthCheckerTest, AnAskerThatComesLaterHasItsOwnLimitToo) {
  const auto server = start_checked_server("127.0.0.1:0");
  TcpProxy proxy(server->address());
  proxy.block(Direction::kToServer, true);
  const auto channel = channel_to(proxy.address());
  auto later = check(channel, {.limit = after(minutes(10)), .unreachable_time = {}});
  auto soon = check(channel, {.limit = after(milliseconds(100))});
  EXPECT_EQ(error_code(answer_of(soon)), ErrorCode::kDeadlineExceeded);
  proxy.block(Direction::kToServer, false);
  EXPECT_EQ(answer_of(later), absl::OkStatus());
}

TEST_F(HealthCheckerTest, AskersShareOneCall) {
  Metrics metrics;
  const auto server = start_checked_server("127.0.0.1:0", &metrics);
  TcpProxy proxy(server->address());
  proxy.block(Direction::kToServer, true);
  const auto channel = channel_to(proxy.address());
  std::vector<std::future<absl::Status>> checks;
  for (int i = 0; i < 50; ++i) checks.push_back(check(channel, {.limit = after(seconds(20))}));
  proxy.block(Direction::kToServer, false);
  for (auto& each : checks) EXPECT_EQ(answer_of(each), absl::OkStatus());
  // A slow machine may need more than one.
  EXPECT_LE(metrics.counter("rpc_server/trireme.Hello/Hello/calls").value(), 5u);
}

TEST_F(HealthCheckerTest, AnotherIncarnationIsAnAnswer) {
  const auto server = start_checked_server("127.0.0.1:0");
  auto other = check(channel_to(server->address()), {.limit = after(minutes(1))}, 78);
  EXPECT_EQ(error_code(answer_of(other)), ErrorCode::kIncarnationChanged);
}

TEST_F(HealthCheckerTest, EachAskerDecidesHowLongATaskMayBeUnreachable) {
  const auto port = value_or_throw(PortReservation::make());  // refuses connections
  const auto channel = channel_to(port.address());
  auto patient = check(channel, {.limit = after(minutes(1)), .unreachable_time = {}});
  auto usual = check(channel, {.limit = after(minutes(1)), .unreachable_time = milliseconds(300)});
  auto strict = check(
      channel, {.limit = after(minutes(1)), .unreachable_time = {}, .fails_if_refused = true});
  EXPECT_EQ(error_code(answer_of(strict)), ErrorCode::kTaskUnreachable);
  const absl::Status unreachable = answer_of(usual);
  EXPECT_EQ(error_code(unreachable), ErrorCode::kTaskUnreachable);
  EXPECT_EQ(error_origin(unreachable).task, kCheckedTask);
  EXPECT_EQ(patient.wait_for(seconds(0)), std::future_status::timeout);
  const auto server = start_checked_server(port.address());
  EXPECT_EQ(answer_of(patient), absl::OkStatus());
}

TEST_F(HealthCheckerTest, ABrokenConnectionIsNoRefusal) {
  const auto server = start_checked_server("127.0.0.1:0");
  TcpProxy proxy(server->address());
  proxy.set_cut(1);
  auto strict =
      check(channel_to(proxy.address()),
            {.limit = after(minutes(1)), .unreachable_time = {}, .fails_if_refused = true});
  EXPECT_EQ(strict.wait_for(seconds(1)), std::future_status::timeout);
  proxy.set_cut(0);
  EXPECT_EQ(answer_of(strict), absl::OkStatus());
}

}  // namespace
}  // namespace trireme::internal
