// The ring passes the tests of all engines (engine_test.h), with payloads in one piece and in
// several, and between servers over gRPC.
#include "trireme/collective/ring_engine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "trireme/base/status.h"
#include "trireme/collective/engine_test.h"
#include "trireme/collective/forwarding_group.h"
#include "trireme/collective/local_group.h"
#include "trireme/collective/ring_call.h"
#include "trireme/collective/ring_lanes.h"
#include "trireme/collective/ring_layout.h"
#include "trireme/collective/ring_stream.h"
#include "trireme/collective/server_groups.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;

INSTANTIATE_TEST_SUITE_P(RingOverGrpc, EngineTest,
                         testing::Values(EngineUnderTest{make_ring_engine, make_server_groups}));
INSTANTIATE_TEST_SUITE_P(Ring, EngineTest, testing::Values(EngineUnderTest{make_ring_engine}));
INSTANTIATE_TEST_SUITE_P(ScatteredRing, EngineTest,
                         testing::Values(EngineUnderTest{make_ring_engine,
                                                         make_scattering_groups}));

// Tensors of up to 1 MiB of more ranks than exchange directly are combined by recursive doubling.
TEST(RingEngine, ManyRanksCombineSmallTensors) {
  for (const int size : {9, 11, 16}) {
    EngineRanks ranks({make_ring_engine}, size);
    std::vector<at::Tensor> results(size);
    ranks.on_all([&](int rank) {
      results[rank] = at::full({5}, 0.1f * static_cast<float>(rank));
      const absl::Status status = ranks.run(rank, {.kind = CollectiveKind::kAllReduce,
                                                   .reduction = Reduction::kMean,
                                                   .input = results[rank],
                                                   .output = results[rank]});
      ASSERT_TRUE(status.ok()) << status;
    });
    EXPECT_TRUE(at::allclose(results[0], at::full({5}, 0.05 * (size - 1)))) << results[0];
    for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
  }
}

// Rank 0 waits for its neighbours, which have come. One of them waits for rank 2, and knows it. The
// deadlines do not depend on when the threads start: rank 0 waits for a second after its own.
TEST(RingEngine, RankWhoseNeighboursHaveComeLetsThemNameTheMissingOne) {
  EngineRanks ranks({make_ring_engine}, 4);
  const Time deadline = after(std::chrono::milliseconds(1500));
  ranks.on_all([&](int rank) {
    ASSERT_TRUE(ranks.run(rank, {.kind = CollectiveKind::kBarrier}).ok());  // All are ready.
    if (rank == 2) return;
    const at::Tensor tensor = at::ones({600000});
    const Time own = deadline + std::chrono::milliseconds(rank == 0 ? 0 : 300);
    const absl::Status status =
        ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor},
                  own - Clock::real().now());
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("waited for rank 2 (/job:worker/task:2), which did not"));
  });
}

constexpr char kStreamBytes[] = "rpc_server/trireme.Collective/Stream/bytes_in";

// Ranks that are servers in this process, and have lanes.
class RingLanesTest : public testing::Test {
 protected:
  // Returns the number of bytes that have come to the servers through gRPC.
  uint64_t bytes_in_calls() const {
    uint64_t bytes = 0;
    for (const auto& server : servers_->servers) {
      bytes += server->context().metrics.counters().at(kStreamBytes);
    }
    return bytes;
  }

  EngineUnderTest subject(EngineFactory factory = make_ring_engine) {
    return {std::move(factory), [this](int size) {
              servers_ = std::make_shared<ServerGroups>(size);
              return std::vector<std::shared_ptr<Group>>(servers_->groups);
            }};
  }

  // Reduces a large tensor on three ranks.
  static void expect_large_sum(EngineRanks& ranks) {
    ranks.on_all([&](int rank) {
      const at::Tensor tensor = at::full({1000003}, rank + 1.0f);
      const absl::Status status =
          ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor});
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(at::equal(tensor, at::full({1000003}, 6.0f)));
    });
  }

  std::shared_ptr<ServerGroups> servers_;
};

TEST_F(RingLanesTest, LargeTensorsDoNotTravelThroughGrpc) {
  EngineRanks ranks(subject(), 3);
  expect_large_sum(ranks);
  EXPECT_LT(bytes_in_calls(), 10000u);
}

// A group whose members wait in vain for a connection.
class GroupWithoutConnection final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  absl::StatusOr<std::vector<std::string>> exchange(const std::string& key,
                                                    const std::string& bytes,
                                                    Time deadline) override {
    // Rank 1 tells the others a token that its port does not know.
    std::string spoilt = bytes;
    if (rank() == 1 && key == "lanes") spoilt.back() ^= 1;
    return ForwardingGroup::exchange(key, spoilt, deadline);
  }
};

TEST_F(RingLanesTest, AllRanksUseGrpcIfOneCannotConnect) {
  std::vector<std::unique_ptr<Group>> spoiled(3);
  EngineRanks ranks(subject([&](Group& group, Time deadline) {
                      spoiled[group.rank()] = std::make_unique<GroupWithoutConnection>(group);
                      return make_ring_engine(*spoiled[group.rank()], deadline);
                    }),
                    3);
  expect_large_sum(ranks);
  EXPECT_GT(bytes_in_calls(), 1000000u);
}

TEST_F(RingLanesTest, LargeTensorsOfOtherShapesAreAnErrorThatNamesBoth) {
  EngineRanks ranks(subject(), 2);
  ranks.on_all([&](int rank) {
    const at::Tensor tensor = at::ones({1000000 + rank});
    const absl::Status status =
        ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor});
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("float32[1000000]"));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("float32[1000001]"));
  });
}

TEST_F(RingLanesTest, RankThatIsMissingIsNamed) {
  EngineRanks ranks(subject(), 3);
  ranks.on_all([&](int rank) {
    ASSERT_TRUE(ranks.run(rank, {.kind = CollectiveKind::kBarrier}).ok());
    if (rank == 1) return;
    const at::Tensor tensor = at::ones({1000000});
    const absl::Status status =
        ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor},
                  std::chrono::milliseconds(500));
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("rank 1 (/job:worker/task:1), which did not make the call"));
  });
}

// Rank 1 ends its engine in the middle of a call, as a process does that is killed.
TEST_F(RingLanesTest, LostConnectionEndsTheGroup) {
  EngineRanks ranks(subject(), 2);
  const at::Tensor tensor = at::ones({64 << 20});
  const CollectiveCall call = {
      .kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor};
  ranks.on_all([&](int rank) {
    if (rank == 0) {
      const absl::Status status = ranks.run(0, call);
      EXPECT_EQ(error_code(status), ErrorCode::kTaskUnreachable) << status;
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr("rank 1 (/job:worker/task:1) of group 'test' was lost: the "
                                     "connection was lost"));
      return;
    }
    Parcel parcel{.from = 1,
                  .sequence = 1,
                  .call_fingerprint = fingerprint(call),
                  .call_description = describe_call(call)};
    std::promise<void> taken;
    ranks.group(1).send(0, std::move(parcel), [&](const absl::Status&) { taken.set_value(); });
    ASSERT_EQ(taken.get_future().wait_for(seconds(20)), std::future_status::ready);
    ranks.end(1);
  });
}

// Streams tensors of any size in pieces of at most 16 bytes, and segments of at least 64 elements.
class StreamOfSmallPieces final : public CollectiveEngine {
 public:
  StreamOfSmallPieces(Group& group, RingLanes lanes)
      : group_(group), sender_(group), lanes_(std::move(lanes)) {}
  const char* name() const override { return "small pieces"; }
  absl::Status run(const CollectiveCall& call) override {
    RingCall ring(group_, sender_, call);
    const int64_t stride =
        divide_up(divide_up(call.output.numel(), group_.size()), kSegmentAlignment) *
        kSegmentAlignment;
    return stream_around(group_, ring, lanes_, call, RingLayout(call.output, stride, 16, 16), 0,
                         2 * group_.size() - 2);
  }

 private:
  Group& group_;
  ParcelSender sender_;
  RingLanes lanes_;
};

// The last pieces and segments are empty, because segments are rounded up.
TEST_F(RingLanesTest, PiecesMayBeEmpty) {
  EngineRanks ranks(
      subject([](Group& group, Time deadline) -> absl::StatusOr<std::unique_ptr<CollectiveEngine>> {
        auto lanes = value_or_throw(connect_ring_lanes(group, deadline));
        return std::make_unique<StreamOfSmallPieces>(group, *std::move(lanes));
      }),
      4);
  ranks.on_all([&](int rank) {
    for (const int64_t numel : {1, 63, 65, 129, 257, 1000}) {
      const at::Tensor tensor = at::arange(numel, at::kFloat) + rank;
      const absl::Status status =
          ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor});
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(at::equal(tensor, at::arange(numel, at::kFloat) * 4 + 6)) << numel;
    }
  });
}

// A parcel that does not fit the call comes from another release, or from a peer with a bug.
TEST(RingEngine, ParcelThatDoesNotFitIsAnError) {
  for (const int64_t numel : {16, 300000}) {
    LocalGroups groups(2);
    auto engine = make_ring_engine(groups[0], after(seconds(30)));
    ASSERT_TRUE(engine.ok());
    const at::Tensor tensor = at::ones({numel});
    const CollectiveCall call = {.kind = CollectiveKind::kAllReduce,
                                 .sequence = 1,
                                 .input = tensor,
                                 .output = tensor,
                                 .deadline = after(seconds(30))};
    groups[1].send(
        0,
        {.sequence = 1, .slot = 0, .call_fingerprint = fingerprint(call), .payload = at::ones({3})},
        [](const absl::Status&) {});
    const absl::Status status = (*engine)->run(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                testing::HasSubstr("rank 1 (/job:worker/task:1) sent a parcel"));
    groups[0].fail(status);
  }
}

// The step to which a slot belongs must not overflow.
TEST(RingEngine, AParcelOfASlotThatTheCallDoesNotHaveIsAnError) {
  LocalGroups groups(2);
  auto engine = make_ring_engine(groups[0], after(seconds(30)));
  ASSERT_TRUE(engine.ok());
  const CollectiveCall call = {.kind = CollectiveKind::kReduceScatter,
                               .sequence = 1,
                               .input = at::ones({16}),
                               .output = at::ones({8}),
                               .deadline = after(seconds(2))};
  groups[1].send(0,
                 {.sequence = 1,
                  .slot = 0xfffffffe,
                  .call_fingerprint = fingerprint(call),
                  .payload = at::ones({8})},
                 [](const absl::Status&) {});
  const absl::Status status = (*engine)->run(call);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  groups[0].fail(status);
}

// Delivers slot 0 of a call of rank 1 twice, the second time after the first was taken. Expects
// that the call ends with an error.
void expect_that_a_slot_counts_once(CollectiveCall call, const at::Tensor& payload) {
  SCOPED_TRACE(describe_call(call));
  LocalGroups groups(3);
  const auto engine = value_or_throw(make_ring_engine(groups[1], after(seconds(30))));
  call.sequence = 1;
  call.deadline = after(seconds(10));
  auto running = std::async(std::launch::async, [&] { return engine->run(call); });
  for (int time = 0; time < 2; ++time) {
    auto taken = std::make_shared<std::promise<void>>();
    auto is_taken = taken->get_future();
    groups[0].send(1, {.sequence = 1, .call_fingerprint = fingerprint(call), .payload = payload},
                   [taken](const absl::Status&) { taken->set_value(); });
    EXPECT_EQ(is_taken.wait_for(seconds(10)), std::future_status::ready);
  }
  const absl::Status status = running.get();
  EXPECT_EQ(error_code(status), ErrorCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("rank 0 (/job:worker/task:0) sent a parcel for slot 0"));
  groups[1].fail(status);
}

// The second parcel would be counted in place of one that is missing.
TEST(RingEngine, AParcelThatComesTwiceIsAnError) {
  const at::Tensor values = at::ones({24});
  const at::Tensor large = at::ones({3 * 300000});  // Each part is sent in four pieces.
  expect_that_a_slot_counts_once(
      {.kind = CollectiveKind::kReduceScatter, .input = values, .output = at::ones({8})},
      at::ones({8}));
  expect_that_a_slot_counts_once(
      {.kind = CollectiveKind::kBroadcast, .input = values, .output = values}, {});
  expect_that_a_slot_counts_once(
      {.kind = CollectiveKind::kAllToAll, .input = large, .output = at::empty_like(large)},
      at::ones({75000}));
}

}  // namespace
}  // namespace trireme::internal
