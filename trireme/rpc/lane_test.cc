// A lane carries bytes between two processes, and only a process that has its token can make it.
#include "trireme/rpc/lane.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/port_listener.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LaneTest : public testing::Test {
 protected:
  LaneTest()
      : listener_(value_or_throw(PortListener::bind({.address = "127.0.0.1:0",
                                                     .on_connection = [](Socket) {},
                                                     .lanes = table_,
                                                     .lane_time = seconds(20),
                                                     .silence_limit = seconds(20)}))) {
    listener_->start();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", listener_->port()); }

  const std::shared_ptr<LaneTable> table_ = std::make_shared<LaneTable>();
  const std::unique_ptr<PortListener> listener_;
};

TEST_F(LaneTest, CarriesBytesInTheirOrder) {
  const std::string token = table_->expect();
  Lane out = value_or_throw(connect_lane(address(), token, after(seconds(10))));
  Lane in = value_or_throw(table_->take(token, after(seconds(10))));

  std::vector<uint32_t> numbers(1 << 20);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint32_t>(i * 2654435761u);
  const size_t bytes = numbers.size() * sizeof(numbers[0]);
  std::jthread sender([&] {
    for (size_t sent = 0; sent < bytes;) {
      ASSERT_TRUE(wait_for(out.socket(), POLLOUT, after(seconds(10))));
      sent += value_or_throw(
          out.send_some(reinterpret_cast<const char*>(numbers.data()) + sent, bytes - sent));
    }
    out = Lane(Socket());  // Bytes that were sent arrive all the same.
  });
  std::vector<uint32_t> received(numbers.size());
  for (size_t got = 0; got < bytes;) {
    ASSERT_TRUE(wait_for(in.socket(), POLLIN, after(seconds(10))));
    got += value_or_throw(
        in.receive_some(reinterpret_cast<char*>(received.data()) + got, bytes - got));
  }
  EXPECT_EQ(received, numbers);

  ASSERT_TRUE(wait_for(in.socket(), POLLIN, after(seconds(10))));
  char byte;
  EXPECT_EQ(error_code(in.receive_some(&byte, 1).status()), ErrorCode::kUnavailable);
}

TEST_F(LaneTest, ReportsThatNothingCanBeMoved) {
  const std::string token = table_->expect();
  Lane out = value_or_throw(connect_lane(address(), token, after(seconds(10))));
  Lane in = value_or_throw(table_->take(token, after(seconds(10))));
  char byte = 0;
  EXPECT_EQ(value_or_throw(in.receive_some(&byte, 1)), 0u);
  EXPECT_EQ(value_or_throw(in.receive_some(&byte, 0)), 0u);
  EXPECT_EQ(value_or_throw(out.send_some(&byte, 0)), 0u);
  const std::string data(1 << 20, 'x');
  size_t sent = 1;
  for (int i = 0; i < 1000 && sent > 0; ++i) {
    sent = value_or_throw(out.send_some(data.data(), data.size()));
  }
  EXPECT_EQ(sent, 0u);  // Nobody receives.
}

TEST_F(LaneTest, IsClosedIfNobodyExpectsIt) {
  const std::string known = table_->expect();
  const std::string forgotten = table_->expect();
  table_->forget(forgotten);
  for (const std::string& token : {forgotten, std::string(LaneTable::kTokenBytes, '\0')}) {
    Lane lane = value_or_throw(connect_lane(address(), token, after(seconds(10))));
    ASSERT_TRUE(wait_for(lane.socket(), POLLIN, after(seconds(10))));
    char byte;
    EXPECT_EQ(error_code(lane.receive_some(&byte, 1).status()), ErrorCode::kUnavailable);
    EXPECT_EQ(error_code(table_->take(token, after(seconds(10))).status()), ErrorCode::kNotFound);
  }
  EXPECT_EQ(error_code(table_->take(known, after(milliseconds(1))).status()),
            ErrorCode::kDeadlineExceeded);
}

// A peer that repeats a token must not replace a lane that is in use.
TEST_F(LaneTest, TokenCountsOnce) {
  const std::string token = table_->expect();
  Lane first = value_or_throw(connect_lane(address(), token, after(seconds(10))));
  Lane in = value_or_throw(table_->take(token, after(seconds(10))));
  Lane second = value_or_throw(connect_lane(address(), token, after(seconds(10))));
  ASSERT_TRUE(wait_for(second.socket(), POLLIN, after(seconds(10))));
  char byte = 'a';
  EXPECT_EQ(error_code(second.receive_some(&byte, 1).status()), ErrorCode::kUnavailable);
  EXPECT_EQ(value_or_throw(first.send_some(&byte, 1)), 1u);
  ASSERT_TRUE(wait_for(in.socket(), POLLIN, after(seconds(10))));
  char received = 0;
  EXPECT_EQ(value_or_throw(in.receive_some(&received, 1)), 1u);
  EXPECT_EQ(received, 'a');
}

TEST_F(LaneTest, TokensDiffer) {
  EXPECT_NE(table_->expect(), table_->expect());
  EXPECT_EQ(table_->expect().size(), LaneTable::kTokenBytes);
}

}  // namespace
}  // namespace trireme::internal
