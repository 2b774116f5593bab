#include "trireme/rpc/flow_control.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>

#include "trireme/rpc/channel.h"
#include "trireme/rpc/server.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(Grant, DecodesWhatWasEncoded) {
  EXPECT_EQ(encode_grant(7).size(), kGrantFrameBytes);
  EXPECT_EQ(decode_grant(encode_grant(123456789012)), 123456789012);
  EXPECT_FALSE(decode_grant(""));
  EXPECT_FALSE(decode_grant(std::string(kGrantFrameBytes, 'x')));
  EXPECT_FALSE(decode_grant(encode_grant(1) + "x"));
}

TEST(SendWindow, IgnoresOlderGrants) {
  SendWindow window;
  EXPECT_TRUE(window.has_room(kInitialGrantBytes));
  EXPECT_FALSE(window.has_room(kInitialGrantBytes + 1));
  window.grant(10 * kMiB);
  window.grant(3 * kMiB);
  window.sent(9 * kMiB);
  EXPECT_TRUE(window.has_room(kMiB));
  EXPECT_FALSE(window.has_room(kMiB + 1));
}

// Simulates a transfer over a network that loses nothing and delays each direction by up to `delay`
// frames. Checks that the sender never waits for a grant that does not come, and that it is never
// more than the window ahead.
void transfer(uint64_t total, bool total_is_known, size_t delay) {
  SendWindow sender;
  ReceiveWindow receiver;
  std::deque<uint64_t> frames, grants;  // in flight
  uint64_t sent = 0, taken = 0;
  int granted = 0;
  while (taken < total) {
    const uint64_t frame = std::min(kFrameBytes, total - sent);
    if (frame > 0 && sender.has_room(frame)) {
      sender.sent(frame);
      sent += frame;
      frames.push_back(frame);
    } else {
      ASSERT_FALSE(frames.empty() && grants.empty()) << "both wait, at " << sent << " of " << total;
    }
    ASSERT_LE(sent - taken, kWindowBytes);
    const bool sender_waits =
        sent == total || !sender.has_room(std::min(kFrameBytes, total - sent));
    if (!frames.empty() && (sender_waits || frames.size() > delay)) {
      receiver.took(frames.front());
      taken += frames.front();
      frames.pop_front();
      const auto left = total_is_known ? std::optional(total - taken) : std::nullopt;
      if (const auto due = receiver.next_grant(left)) grants.push_back(*due), ++granted;
    }
    if (!grants.empty() && (sender_waits || grants.size() > delay)) {
      sender.grant(grants.front());
      grants.pop_front();
    }
  }
  if (total_is_known) {
    EXPECT_LE(granted, 1 + static_cast<int>(total / kGrantBytes));
    if (total <= kInitialGrantBytes) {
      EXPECT_EQ(granted, 0);
    }
  }
}

TEST(Windows, EveryTransferCompletes) {
  for (uint64_t total : {uint64_t{1}, kMiB, 2 * kMiB, 2 * kMiB + 1, 3 * kMiB, 8 * kMiB,
                         9 * kMiB + 7, 13 * kMiB, 64 * kMiB, 1000 * kMiB + 5}) {
    for (bool known : {true, false}) {
      for (size_t delay : {0, 1, 3, 10}) transfer(total, known, delay);
    }
  }
}

class EchoService final : public Service {
 public:
  std::vector<Method> methods() override {
    return {{"/test.Test/Echo", Roles::all(), Repeats::kHarmless,
             [](ServerCall call) { call.respond(std::move(call.request())); }}};
  }
};

// Sends several messages concurrently, large both ways, among them bodies that are larger than the
// window and a tensor table that is larger than the initial grant.
TEST(FlowControl, LargeMessagesArriveCompleteBothWays) {
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<EchoService>());
  const auto server = value_or_throw(RpcServer::start(
      {.address = "127.0.0.1:0", .task = "/job:ps/task:0", .incarnation = 1}, std::move(services)));
  Channel channel({.address = server->address()});
  std::vector<Message> messages;
  for (int64_t mib : {1, 2, 3, 8, 9, 10, 33}) {
    messages.push_back({"body", {at::arange(mib * 131072 + 3, at::kLong)}});
  }
  messages.push_back({std::string(20 * kMiB, 'b'), {}});
  messages.push_back({std::string(20 * kMiB, 'c'), {at::arange(1 << 20, at::kLong)}});
  Message many;  // has a table of 2.7 MiB before the first byte of a tensor
  for (int i = 0; i < 100'000; ++i) many.tensors.push_back(at::full({1, 1, 1}, i, at::kInt));
  messages.push_back(std::move(many));
  std::vector<std::future<Response>> answers;
  for (const Message& message : messages) {
    auto answer = std::make_shared<std::promise<Response>>();
    answers.push_back(answer->get_future());
    channel.call("/test.Test/Echo", message, {.large_response = true},
                 [answer](Response response) { answer->set_value(std::move(response)); });
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Response answer = answers[i].get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->body == messages[i].body);
    ASSERT_EQ(answer->tensors.size(), messages[i].tensors.size());
    for (size_t t = 0; t < answer->tensors.size(); ++t) {
      ASSERT_TRUE(at::equal(answer->tensors[t], messages[i].tensors[t]));
    }
  }
}

}  // namespace
}  // namespace trireme::internal
