// The ring passes the tests of all engines (engine_test.h), with payloads in one piece and in
// several, and between servers over gRPC.
#include "trireme/collective/ring_engine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "trireme/base/status.h"
#include "trireme/collective/engine_test.h"
#include "trireme/collective/local_group.h"
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
