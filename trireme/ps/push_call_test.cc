// Sends pushes to a server as a peer could that does not check them, and looks at what changed.
#include "trireme/ps/push_call.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/ps/packing.h"
#include "trireme/ps/test_servers.h"
#include "trireme/ps/variable_methods.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/channel.h"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr uint64_t kPushWriter = 78;

// Two variables of four rows, 'a' and 'b', on one server, and a channel to it.
class PushCalls : public testing::Test {
 protected:
  PushCalls()
      : client_(servers_.client()),
        channel_(ChannelOptions{.address = servers_.spec().address(TaskId{"ps", 0}),
                                .task = "/job:ps/task:0"}) {
    value_or_throw(channel_.hello(after(std::chrono::seconds(20))));
    throw_if_error(client_->begin_writer(kPushWriter));
    a_ = make("a");
    b_ = make("b");
  }

  std::optional<PsVariable> make(const std::string& name) {
    ShardPlacer placer(1, Placement::kRoundRobin, FixedPartitioner(1));
    const auto layouts = placer.place({{name, {4, 2}, at::kFloat}});
    return value_or_throw(client_->create({{.layout = layouts[0]}}))[0];
  }

  // Makes a push without variables.
  static PushRequest new_push(uint64_t sequence) {
    PushRequest push;
    push.set_writer(kPushWriter);
    push.set_sequence(sequence);
    return push;
  }

  // Adds an update of a whole variable, or of one row if `row` has a value.
  static void add(PushRequest& push, std::vector<at::Tensor>& tensors, const PsVariable& variable,
                  UpdateKind kind, std::optional<int64_t> row = std::nullopt) {
    push.add_handles(variable.handle(0));
    push.add_kinds(kind);
    push.add_rows(row ? 2 : 0);
    if (row) tensors.push_back(at::full({1}, *row, at::kLong));
    tensors.push_back(row ? at::ones({1, 2}) : at::ones({4, 2}));
  }

  absl::StatusOr<PushResponse> send(const PushRequest& push,
                                    const std::vector<at::Tensor>& tensors) {
    TRIREME_ASSIGN_OR_RETURN(
        const Message answer,
        channel_.call(kPushVariables, make_message(push, internal::pack(tensors))));
    return parse_body<PushResponse>(answer);
  }

  std::vector<at::Tensor> pull() { return value_or_throw(client_->pull({{*a_}, {*b_}})); }
  void expect_unchanged() {
    for (const at::Tensor& value : pull()) EXPECT_TRUE(value.equal(at::zeros({4, 2}))) << value;
  }

  TestServers servers_{1};
  std::unique_ptr<PsClient> client_;
  Channel channel_;
  std::optional<PsVariable> a_, b_;
};

TEST_F(PushCalls, RejectsAVariableThatIsNamedTwice) {
  PushRequest push = new_push(1);
  std::vector<at::Tensor> tensors;
  for (const PsVariable& variable : {*a_, *b_, *a_}) add(push, tensors, variable, UPDATE_ADD);
  const absl::Status status = send(push, tensors).status();
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(describe(status), HasSubstr("variable 'a': the push names it twice"));
  expect_unchanged();
  // The order of the variables does not matter.
  push = new_push(1);
  tensors.clear();
  for (const PsVariable& variable : {*b_, *a_}) add(push, tensors, variable, UPDATE_ADD);
  throw_if_error(send(push, tensors).status());
  for (const at::Tensor& value : pull()) EXPECT_TRUE(value.equal(at::ones({4, 2})));
}

// Every push has a good update of 'a' first and then one that is rejected.
TEST_F(PushCalls, ChecksAllUpdatesBeforeItAppliesTheFirst) {
  throw_if_error(client_->set_optimizer({*b_}, *internal::make_rule("adam", {{"amsgrad", 1}})));
  const auto rejection = [&](UpdateKind kind, std::optional<int64_t> row,
                             const PsVariable& variable) {
    PushRequest push = new_push(1);
    std::vector<at::Tensor> tensors;
    add(push, tensors, *a_, UPDATE_ADD);
    add(push, tensors, variable, kind, row);
    const absl::Status status = send(push, tensors).status();
    EXPECT_FALSE(status.ok());
    expect_unchanged();
    return describe(status);
  };
  EXPECT_THAT(rejection(UPDATE_GRADIENT, 1, *b_),
              HasSubstr("variable 'b': AMSGrad is not defined for sparse gradients"));
  EXPECT_THAT(rejection(UPDATE_ADD, 4, *b_), HasSubstr("variable 'b': row 4 does not exist"));
  EXPECT_THAT(rejection(static_cast<UpdateKind>(9), {}, *b_), HasSubstr("an update of kind 9"));
  const std::optional<PsVariable> c = make("c");
  EXPECT_THAT(rejection(UPDATE_GRADIENT, {}, *c), HasSubstr("variable 'c': a gradient was pushed"));
  // Nothing was recorded either: the push with this identity can still be applied.
  PushRequest push = new_push(1);
  std::vector<at::Tensor> tensors;
  add(push, tensors, *a_, UPDATE_ADD);
  throw_if_error(send(push, tensors).status());
  EXPECT_TRUE(pull()[0].equal(at::ones({4, 2})));
}

TEST_F(PushCalls, AnswersWithVersions) {
  PushRequest push = new_push(1);
  std::vector<at::Tensor> tensors;
  add(push, tensors, *a_, UPDATE_ADD);
  add(push, tensors, *b_, UPDATE_ADD);
  const PushResponse first = value_or_throw(send(push, tensors));
  ASSERT_EQ(first.versions_size(), 2);
  const PushResponse repeated = value_or_throw(send(push, tensors));
  EXPECT_EQ(repeated.SerializeAsString(), first.SerializeAsString()) << "nothing has changed";

  PushRequest other = new_push(2);
  tensors.clear();
  add(other, tensors, *a_, UPDATE_ADD, 1);
  EXPECT_EQ(value_or_throw(send(other, tensors)).versions(0), first.versions(0) + 1);
  const PsClient::Pulled pulled = value_or_throw(client_->pull_with_versions({{*b_}, {*a_}}));
  EXPECT_EQ(pulled.versions[0], ShardVersions{first.versions(1)});
  EXPECT_EQ(pulled.versions[1], ShardVersions{first.versions(0) + 1});
}

// Every push adds 1, so the version tells the contents.
TEST_F(PushCalls, VersionsBelongToTheContents) {
  constexpr int kPushes = 100;
  const uint64_t start = *value_or_throw(client_->pull_with_versions({{*a_}})).versions[0][0];
  std::thread pusher([&] {
    const auto client = servers_.client();
    for (uint64_t i = 0; i < kPushes; ++i) {
      EXPECT_TRUE(client
                      ->push({{.variable = *a_, .values = at::ones({4, 2})}},
                             {.id = {kPushWriter, i, 0}, .watermark = i})
                      .ok());
    }
  });
  uint64_t last = start;
  const Time limit = after(std::chrono::seconds(60));
  while (last < start + kPushes && Clock::real().now() < limit && !HasFailure()) {
    const PsClient::Pulled pulled = value_or_throw(client_->pull_with_versions({{*a_}}));
    const uint64_t version = *pulled.versions[0][0];
    EXPECT_GE(version, last);
    EXPECT_TRUE(pulled.values[0].equal(at::full({4, 2}, static_cast<double>(version - start))));
    last = version;
  }
  pusher.join();
  EXPECT_EQ(last, start + kPushes);
}

TEST_F(PushCalls, ClientsCheckThePushToAllServersFirst) {
  TestServers servers(2);
  const auto client = servers.client();
  ShardPlacer placer(2, Placement::kRoundRobin, FixedPartitioner(2));
  const auto layouts =
      placer.place({{"x", {4, 2}, at::kFloat}, {"y", {1, 2}, at::kFloat}, {"z", {4}, at::kLong}});
  const auto made = value_or_throw(
      client->create({{.layout = layouts[0]}, {.layout = layouts[1]}, {.layout = layouts[2]}}));
  throw_if_error(client->begin_writer(kPushWriter));
  const PsPush x{.variable = made[0], .values = at::ones({4, 2})};
  const PsPush y{.variable = made[1], .values = at::ones({1, 2})};
  EXPECT_THAT(describe(client->push({y, x, y}, {.id = {kPushWriter, 1, 0}})),
              StartsWith("variable 'y': the push names it twice"));
  EXPECT_EQ(servers.calls("Push"), 0u) << "nothing was sent";

  // Versions are those of each shard; a shard without a row that changes takes no part.
  const std::vector<ShardVersions> versions =
      value_or_throw(client->push_with_versions({x,
                                                 y,
                                                 {.variable = made[2],
                                                  .rows = at::full({1}, 3, at::kLong),
                                                  .values = at::ones({1}, at::kLong)}},
                                                {.id = {kPushWriter, 1, 0}}));
  ASSERT_EQ(versions.size(), 3u);
  EXPECT_EQ(versions[0].size(), 2u);
  EXPECT_EQ(versions[1].size(), 1u);
  EXPECT_TRUE(versions[0][0] && versions[0][1] && versions[1][0]);
  EXPECT_FALSE(versions[2][0].has_value());
  const PsClient::Pulled pulled =
      value_or_throw(client->pull_with_versions({{made[0]}, {made[1]}, {made[2]}}));
  EXPECT_EQ(pulled.versions[0], versions[0]);
  EXPECT_EQ(pulled.versions[1], versions[1]);
  EXPECT_EQ(pulled.versions[2][1], versions[2][1]);
  EXPECT_TRUE(pulled.values[0].equal(at::ones({4, 2})));
}

}  // namespace
}  // namespace trireme
