// Every engine moves and combines tensors correctly, gives all ranks the same bits, and reports
// ranks that are missing or make other calls.
#include "trireme/collective/engine_test.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/collective/local_group.h"

namespace trireme::internal {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

namespace {

std::vector<std::shared_ptr<Group>> shared_members(std::shared_ptr<LocalGroups> groups, int size) {
  std::vector<std::shared_ptr<Group>> members;
  for (int rank = 0; rank < size; ++rank) members.emplace_back(groups, &(*groups)[rank]);
  return members;
}

// Elements of the largest tensor of a test, and more.
constexpr int64_t kPatternNumel = 1300000;

// Returns small whole numbers that differ by rank and `salt`. Their sums are exact in every dtype.
at::Tensor values_of(int rank, int64_t numel, at::ScalarType dtype, int64_t salt = 0) {
  static const at::Tensor pattern =
      at::arange(kPatternNumel, at::kLong).mul_(7).remainder_(17).sub_(8);
  return pattern.narrow(0, (rank * 5 + salt) % 17, numel).to(dtype, false, /*copy=*/true);
}

// Returns the combination of `numel` values of all ranks.
at::Tensor combined(Reduction reduction, int ranks, int64_t numel, at::ScalarType dtype,
                    int64_t salt = 0) {
  at::Tensor result = values_of(0, numel, dtype, salt);
  for (int rank = 1; rank < ranks; ++rank) {
    combine(reduction, result, values_of(rank, numel, dtype, salt), result);
  }
  finish_mean(reduction, result, ranks);
  return result;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0;
}

CollectiveCall all_reduce_call(const at::Tensor& tensor, Reduction reduction = Reduction::kSum) {
  return {.kind = CollectiveKind::kAllReduce,
          .reduction = reduction,
          .tag = "reduced",
          .input = tensor,
          .output = tensor};
}

CollectiveCall barrier_call(const std::string& tag) {
  return {.kind = CollectiveKind::kBarrier, .tag = tag};
}

CollectiveCall broadcast_call(const at::Tensor& tensor, int root) {
  return {.kind = CollectiveKind::kBroadcast,
          .root = root,
          .tag = "spread",
          .input = tensor,
          .output = tensor};
}

const std::vector<Reduction> kReductions = {Reduction::kSum, Reduction::kMean, Reduction::kMin,
                                            Reduction::kMax};
const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong};
// Elements of a rank or part: none, one, odd numbers, and more than engines move at once.
const std::vector<int64_t> kNumels = {0, 1, 7, 1023, 20011, 300007};

// Returns true if the combination is tested. Whole numbers have no mean, and the large sizes are
// tested with one reduction to save time.
bool is_tested(Reduction reduction, at::ScalarType dtype, int64_t numel) {
  if (reduction == Reduction::kMean && dtype == at::kLong) return false;
  if (numel > 300000) return dtype == at::kFloat && reduction == Reduction::kMean;
  return numel < 20000 || reduction == Reduction::kSum;
}

// Calls `body` for the combinations of dtype and size that are tested without a reduction.
void for_dtypes_and_sizes(const std::function<void(at::ScalarType dtype, int64_t numel)>& body) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t numel : kNumels) {
      if (numel < 300000 || dtype == at::kFloat) body(dtype, numel);
    }
  }
}

}  // namespace

std::vector<std::shared_ptr<Group>> make_local_groups(int size) {
  return shared_members(std::make_shared<LocalGroups>(size), size);
}

std::vector<std::shared_ptr<Group>> make_scattering_groups(int size) {
  return shared_members(std::make_shared<LocalGroups>(size, /*scatter=*/true), size);
}

EngineRanks::EngineRanks(const EngineUnderTest& subject, int size)
    : groups_(subject.make_groups(size)), engines_(size), calls_(size) {
  on_all([&](int rank) {
    auto engine = subject.make_engine(*groups_[rank], after(seconds(30)));
    ASSERT_TRUE(engine.ok()) << engine.status();
    engines_[rank] = *std::move(engine);
  });
}

EngineRanks::~EngineRanks() {
  on_all([&](int rank) { engines_[rank].reset(); });
}

void EngineRanks::on_all(const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back([this, &body, rank] {
      at::set_num_threads(1);  // LibTorch would start more threads for each of these.
      body(rank);
      if (testing::Test::HasFatalFailure()) {  // The others need not wait for this rank.
        groups_[rank]->fail(make_status(ErrorCode::kAborted, "the test has failed"));
      }
    });
  }
}

absl::Status EngineRanks::run(int rank, CollectiveCall call, Duration timeout) {
  if (engines_[rank] == nullptr) return make_status(ErrorCode::kInternal, "there is no engine");
  call.sequence = ++calls_[rank];
  call.deadline = after(timeout);
  const absl::Status status = engines_[rank]->run(call);
  if (!status.ok()) groups_[rank]->fail(status);
  return status;
}

TEST_P(EngineTest, OneRankCopiesItsValues) {
  EngineRanks ranks(GetParam(), 1);
  const at::Tensor input = values_of(0, 4, at::kFloat), output = at::zeros({2, 2});
  const absl::Status status = ranks.run(
      0, {.kind = CollectiveKind::kAllGather, .tag = "alone", .input = input, .output = output});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(output.view(-1).equal(input));
}

TEST_P(EngineTest, AllReduceCombinesTheValuesOfAllRanks) {
  for (int size = 1; size <= GetParam().most_ranks; ++size) {
    EngineRanks ranks(GetParam(), size);
    ranks.on_all([&](int rank) {
      for (const Reduction reduction : kReductions) {
        for (const at::ScalarType dtype : kDtypes) {
          for (const int64_t numel : kNumels) {
            if (!is_tested(reduction, dtype, numel)) continue;
            const at::Tensor tensor = values_of(rank, numel, dtype);
            const absl::Status status = ranks.run(rank, all_reduce_call(tensor, reduction));
            ASSERT_TRUE(status.ok()) << status;
            ASSERT_TRUE(at::equal(tensor, combined(reduction, size, numel, dtype)))
                << "rank " << rank << " of " << size << ", " << describe_call({.input = tensor})
                << ", reduction " << static_cast<int>(reduction);
            tensor.fill_(100);  // The other ranks may not need it any more.
          }
        }
      }
    });
  }
}

TEST_P(EngineTest, AllReduceKeepsTheShapeOfItsTensor) {
  EngineRanks ranks(GetParam(), 2);
  ranks.on_all([&](int rank) {
    const at::Tensor tensor = at::full({3, 1, 5}, rank + 1.0, at::kDouble);
    ASSERT_TRUE(ranks.run(rank, all_reduce_call(tensor)).ok());
    EXPECT_TRUE(at::equal(tensor, at::full({3, 1, 5}, 3.0, at::kDouble)));
  });
}

// Sums of fractions depend on their order. All ranks must add in the same order, in every run.
TEST_P(EngineTest, AllRanksAndRunsGetTheSameBits) {
  for (const int64_t numel : {100, 5003, 300007}) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < 4; ++rank) inputs.push_back(at::randn({numel}));
    std::vector<at::Tensor> results;
    for (int run = 0; run < 2; ++run) {
      EngineRanks ranks(GetParam(), 4);
      std::vector<at::Tensor> outputs(4);
      ranks.on_all([&](int rank) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          outputs[rank] = inputs[rank].clone();
          ASSERT_TRUE(ranks.run(rank, all_reduce_call(outputs[rank])).ok());
        }
      });
      results.insert(results.end(), outputs.begin(), outputs.end());
    }
    EXPECT_TRUE(at::allclose(results[0], at::stack(inputs).sum(0), 1e-4, 1e-4));
    for (const at::Tensor& result : results) EXPECT_TRUE(same_bits(result, results[0])) << numel;
  }
}

TEST_P(EngineTest, ReduceScatterGivesEachRankItsPart) {
  for (int size = 1; size <= std::min(4, GetParam().most_ranks); ++size) {
    EngineRanks ranks(GetParam(), size);
    ranks.on_all([&](int rank) {
      for (const Reduction reduction : kReductions) {
        for_dtypes_and_sizes([&](at::ScalarType dtype, int64_t numel) {
          if (!is_tested(reduction, dtype, numel)) return;
          const at::Tensor input = values_of(rank, numel * size, dtype);
          const at::Tensor before = input.clone();
          const at::Tensor output = at::full({numel}, 100, dtype);
          const absl::Status status = ranks.run(rank, {.kind = CollectiveKind::kReduceScatter,
                                                       .reduction = reduction,
                                                       .input = input,
                                                       .output = output});
          ASSERT_TRUE(status.ok()) << status;
          const at::Tensor all = combined(reduction, size, numel * size, dtype);
          ASSERT_TRUE(at::equal(output, all.narrow(0, numel * rank, numel)))
              << "rank " << rank << " of " << size << ", " << describe_call({.input = input})
              << ", reduction " << static_cast<int>(reduction);
          ASSERT_TRUE(at::equal(input, before)) << "the input changed";
          input.fill_(100);
        });
      }
    });
  }
}

TEST_P(EngineTest, AllGatherGivesAllRanksTheValuesInOrder) {
  for (int size = 1; size <= std::min(4, GetParam().most_ranks); ++size) {
    EngineRanks ranks(GetParam(), size);
    ranks.on_all([&](int rank) {
      for_dtypes_and_sizes([&](at::ScalarType dtype, int64_t numel) {
        const at::Tensor input = values_of(rank, numel, dtype);
        const at::Tensor output = at::full({numel * size}, 100, dtype);
        const absl::Status status =
            ranks.run(rank, {.kind = CollectiveKind::kAllGather, .input = input, .output = output});
        ASSERT_TRUE(status.ok()) << status;
        for (int part = 0; part < size; ++part) {
          ASSERT_TRUE(
              at::equal(output.narrow(0, numel * part, numel), values_of(part, numel, dtype)))
              << "part " << part << " at rank " << rank << ", " << describe_call({.input = input});
        }
        input.fill_(100);
        output.fill_(100);
      });
    });
  }
}

TEST_P(EngineTest, BroadcastCopiesTheValuesOfTheRoot) {
  for (int size = 1; size <= std::min(4, GetParam().most_ranks); ++size) {
    EngineRanks ranks(GetParam(), size);
    ranks.on_all([&](int rank) {
      for (int root = 0; root < size; ++root) {
        for_dtypes_and_sizes([&](at::ScalarType dtype, int64_t numel) {
          const at::Tensor tensor = values_of(rank, numel, dtype);
          const absl::Status status = ranks.run(rank, broadcast_call(tensor, root));
          ASSERT_TRUE(status.ok()) << status;
          ASSERT_TRUE(at::equal(tensor, values_of(root, numel, dtype)))
              << "rank " << rank << ", root " << root << ", " << describe_call({.input = tensor});
          tensor.fill_(100);
        });
      }
    });
  }
}

TEST_P(EngineTest, AllToAllTransposesTheParts) {
  for (int size = 1; size <= std::min(4, GetParam().most_ranks); ++size) {
    EngineRanks ranks(GetParam(), size);
    ranks.on_all([&](int rank) {
      for_dtypes_and_sizes([&](at::ScalarType dtype, int64_t numel) {
        const at::Tensor input = values_of(rank, numel * size, dtype);
        const at::Tensor output = at::full({numel * size}, 100, dtype);
        const absl::Status status =
            ranks.run(rank, {.kind = CollectiveKind::kAllToAll, .input = input, .output = output});
        ASSERT_TRUE(status.ok()) << status;
        for (int part = 0; part < size; ++part) {
          const at::Tensor sent = values_of(part, numel * size, dtype);
          ASSERT_TRUE(
              at::equal(output.narrow(0, numel * part, numel), sent.narrow(0, numel * rank, numel)))
              << "part " << part << " at rank " << rank << ", " << describe_call({.input = input});
        }
        input.fill_(100);
        output.fill_(100);
      });
    });
  }
}

TEST_P(EngineTest, BarrierHoldsEachRankUntilAllHaveCalled) {
  for (int size = 1; size <= GetParam().most_ranks; ++size) {
    EngineRanks ranks(GetParam(), size);
    std::atomic<int> calls = 0;
    ranks.on_all([&](int rank) {
      for (int round = 1; round <= 20; ++round) {
        ++calls;
        ASSERT_TRUE(ranks.run(rank, barrier_call("round")).ok());
        ASSERT_GE(calls, round * size) << "rank " << rank << " left too early";
      }
    });
  }
}

// Ranks are at different calls for most of the time, since a rank may leave a call before others.
TEST_P(EngineTest, CallsOfManyKindsFollowEachOther) {
  EngineRanks ranks(GetParam(), 3);
  ranks.on_all([&](int rank) {
    for (int round = 0; round < 40; ++round) {
      const int64_t numel = round % 4 == 0 ? 70001 : 3 * (round + 1);
      const at::Tensor summed = values_of(rank, numel, at::kFloat, round);
      ASSERT_TRUE(ranks.run(rank, all_reduce_call(summed)).ok());
      const at::Tensor spread = values_of(rank, numel, at::kFloat, round);
      ASSERT_TRUE(ranks.run(rank, broadcast_call(spread, round % 3)).ok());
      const at::Tensor part = values_of(rank, numel, at::kLong, round);
      const at::Tensor parts = at::empty({3, numel}, at::kLong);
      ASSERT_TRUE(
          ranks.run(rank, {.kind = CollectiveKind::kAllGather, .input = part, .output = parts})
              .ok());
      ASSERT_TRUE(at::equal(summed, combined(Reduction::kSum, 3, numel, at::kFloat, round)));
      ASSERT_TRUE(at::equal(spread, values_of(round % 3, numel, at::kFloat, round)));
      for (int other = 0; other < 3; ++other) {
        ASSERT_TRUE(at::equal(parts[other], values_of(other, numel, at::kLong, round)));
      }
    }
  });
}

namespace {

// Makes `odd` on one rank and `call` on the others, after a call that all make. Expects that all
// get the error at once, and that it names two ranks and both calls.
void expect_mismatch(const EngineUnderTest& subject, int size, int odd_rank,
                     const CollectiveCall& call, const CollectiveCall& odd) {
  EngineRanks ranks(subject, size);
  std::vector<absl::Status> errors(size);
  const Time start = Clock::real().now();
  ranks.on_all([&](int rank) {
    CollectiveCall own = rank == odd_rank ? odd : call;
    if (own.input.defined()) {
      own.input = own.output = own.input.clone();
      if (own.kind == CollectiveKind::kAllGather)
        own.output = at::cat(std::vector(size, own.input));
    }
    // The error may reach a rank that is not in the second call yet.
    errors[rank] = ranks.run(rank, barrier_call("before"));
    if (errors[rank].ok()) errors[rank] = ranks.run(rank, own);
  });
  EXPECT_LT(Clock::real().now() - start, seconds(10));
  for (const absl::Status& error : errors) {
    EXPECT_EQ(error_code(error), ErrorCode::kFailedPrecondition) << error;
    EXPECT_THAT(std::string(error.message()),
                AllOf(HasSubstr(absl::StrCat(ranks.group(odd_rank).name_of(odd_rank), " is ",
                                             describe_call(odd))),
                      HasSubstr(absl::StrCat(") is ", describe_call(call))), HasSubstr("call 2 of"),
                      HasSubstr("do not make the same calls")));
  }
}

}  // namespace

TEST_P(EngineTest, CallsThatDifferAreAnErrorOnAllRanks) {
  const at::Tensor small = at::ones({16});
  const at::Tensor large = at::ones({300000});
  CollectiveCall renamed = all_reduce_call(small);
  renamed.tag = "renamed";
  CollectiveCall gather = all_reduce_call(large);
  gather.kind = CollectiveKind::kAllGather;
  const std::vector<std::pair<CollectiveCall, CollectiveCall>> pairs = {
      {all_reduce_call(small), renamed},
      {all_reduce_call(small), all_reduce_call(at::ones({17}))},
      {all_reduce_call(small), all_reduce_call(small.reshape({4, 4}))},
      {all_reduce_call(small), all_reduce_call(small.to(at::kDouble))},
      {all_reduce_call(small), all_reduce_call(small, Reduction::kMax)},
      {all_reduce_call(small), all_reduce_call(large)},
      {all_reduce_call(large), barrier_call("instead")},
      {all_reduce_call(large), gather},
      {broadcast_call(large, 0), broadcast_call(large, 1)},
      {broadcast_call(large, 1), broadcast_call(large, 0)},
      {broadcast_call(small, 2), all_reduce_call(large)},
      {barrier_call("here"), broadcast_call(small, 0)},
  };
  for (size_t i = 0; i < pairs.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("pair ", i));
    const auto& [call, odd] = pairs[i];
    const int size = i % 2 == 0 && call.root < 2 ? 2 : 3;
    expect_mismatch(GetParam(), size, static_cast<int>(i) % size, call, odd);
  }
}

TEST_P(EngineTest, MissingRankIsNamedAtTheDeadline) {
  const std::vector<CollectiveCall> calls = {
      all_reduce_call(at::ones({16})), all_reduce_call(at::ones({300000})),
      broadcast_call(at::ones({300000}), 2), barrier_call("all here")};
  std::vector<std::unique_ptr<EngineRanks>> groups;  // by call
  std::vector<std::vector<absl::Status>> errors(calls.size(), std::vector<absl::Status>(4));
  for (size_t i = 0; i < calls.size(); ++i) {
    groups.push_back(std::make_unique<EngineRanks>(GetParam(), 4));
    groups[i]->on_all(
        [&](int rank) { ASSERT_TRUE(groups[i]->run(rank, barrier_call("before")).ok()); });
  }
  std::vector<std::jthread> waiting;  // All groups wait at the same time, to save time.
  for (size_t i = 0; i < calls.size(); ++i) {
    waiting.emplace_back([&, i] {
      groups[i]->on_all([&](int rank) {
        CollectiveCall own = calls[i];
        if (own.input.defined()) own.input = own.output = own.input.clone();
        if (rank != 2) errors[i][rank] = groups[i]->run(rank, own, milliseconds(1500));
      });
    });
  }
  waiting.clear();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call = describe_call(calls[i]);
    SCOPED_TRACE(call);
    for (const int rank : {0, 1, 3}) {
      EXPECT_EQ(error_code(errors[i][rank]), ErrorCode::kDeadlineExceeded) << errors[i][rank];
      EXPECT_THAT(std::string(errors[i][rank].message()),
                  AllOf(HasSubstr(call), HasSubstr("rank 2 (/job:worker/task:2)")));
    }
  }
}

TEST_P(EngineTest, FailureOfTheGroupEndsCallsAtOnce) {
  for (const bool large : {false, true}) {
    EngineRanks ranks(GetParam(), 3);
    std::atomic<int> waiting = 0;
    const auto expect_failure = [&](int rank) {
      const at::Tensor tensor = at::ones({large ? 300000 : 16});
      const absl::Status status = ranks.run(rank, all_reduce_call(tensor));
      EXPECT_EQ(error_code(status), ErrorCode::kCancelled) << status;
      EXPECT_EQ(status.message(), "the test ends the group");
    };
    ranks.on_all([&](int rank) {
      if (rank == 2) {  // The others wait for this rank.
        while (waiting < 2) std::this_thread::yield();
        const Time start = Clock::real().now();
        ranks.group(2).fail(make_status(ErrorCode::kCancelled, "the test ends the group"));
        while (waiting > 0 && Clock::real().now() < start + seconds(10)) std::this_thread::yield();
        EXPECT_LT(Clock::real().now() - start, seconds(2));
        return;
      }
      ++waiting;
      expect_failure(rank);
      --waiting;
      expect_failure(rank);  // A failed group stays failed.
    });
  }
}

}  // namespace trireme::internal
