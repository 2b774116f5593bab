#include "trireme/collective/shm_engine.h"

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trireme/base/status.h"
#include "trireme/collective/altered_group.h"
#include "trireme/collective/engine_test.h"
#include "trireme/collective/local_group.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme::internal {

INSTANTIATE_TEST_SUITE_P(Shm, EngineTest, testing::Values(EngineUnderTest{make_shm_engine}));

namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

void on_shm_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

// Engines of all ranks, which share memory although they are in one process.
struct ShmRanks {
  explicit ShmRanks(int size) : groups(size), engines(size), calls(size) {
    on_shm_ranks(size, [&](int rank) {
      engines[rank] = value_or_throw(make_shm_engine(groups[rank], after(seconds(30))));
    });
  }

  at::Tensor allocate(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) {
    return engines[rank]
        ->allocate(numel * static_cast<int64_t>(at::elementSize(dtype)))
        .view(dtype);
  }

  absl::Status all_reduce(int rank, const at::Tensor& tensor,
                          Reduction reduction = Reduction::kSum) {
    const absl::Status status = engines[rank]->run({.kind = CollectiveKind::kAllReduce,
                                                    .reduction = reduction,
                                                    .sequence = ++calls[rank],
                                                    .input = tensor,
                                                    .output = tensor,
                                                    .deadline = after(seconds(30))});
    if (!status.ok()) groups[rank].fail(status);
    return status;
  }

  LocalGroups groups;
  std::vector<std::unique_ptr<CollectiveEngine>> engines;
  std::vector<uint64_t> calls;  // number of calls of each rank
};

// Returns fractions, whose sum depends on the order.
at::Tensor fractions_of(int rank, int64_t numel, at::ScalarType dtype) {
  return at::arange(numel, at::kDouble).mul_(0.37).add_(rank * 1.1).sin_().mul_(10).to(dtype);
}

at::Tensor combined_in_order(int size, int64_t numel, at::ScalarType dtype, Reduction reduction) {
  at::Tensor result = fractions_of(0, numel, dtype);
  for (int rank = 1; rank < size; ++rank) {
    combine(reduction, result, fractions_of(rank, numel, dtype), result);
  }
  finish_mean(reduction, result, size);
  return result;
}

TEST(ShmEngine, ReducesAllocatedTensorsWhereTheyAre) {
  for (int size = 2; size <= 4; ++size) {
    ShmRanks ranks(size);
    on_shm_ranks(size, [&](int rank) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
        for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
          for (const int64_t numel : {0, 1, 5000, 20011, 300007}) {
            const at::Tensor tensor = ranks.allocate(rank, numel, dtype);
            tensor.copy_(fractions_of(rank, numel, dtype));
            ASSERT_TRUE(ranks.all_reduce(rank, tensor, reduction).ok());
            ASSERT_TRUE(at::equal(tensor, combined_in_order(size, numel, dtype, reduction)))
                << "rank " << rank << " of " << size << ", " << numel << " elements of " << dtype;
          }
        }
      }
    });
  }
}

TEST(ShmEngine, DividesMeansInPlace) {
  ShmRanks ranks(3);
  on_shm_ranks(3, [&](int rank) {
    const at::Tensor tensor = ranks.allocate(rank, 100'003);
    tensor.copy_(fractions_of(rank, 100'003, at::kFloat));
    ASSERT_TRUE(ranks.all_reduce(rank, tensor, Reduction::kMean).ok());
    EXPECT_TRUE(at::equal(tensor, combined_in_order(3, 100'003, at::kFloat, Reduction::kMean)));
  });
}

// Every mixture of shared and ordinary memory, one after the other, gives the same result.
TEST(ShmEngine, RanksWithOrdinaryMemoryTakePart) {
  constexpr int kSize = 3;
  ShmRanks ranks(kSize);
  on_shm_ranks(kSize, [&](int rank) {
    for (const int64_t numel : {100, 9001, 200'003}) {
      const at::Tensor expected = combined_in_order(kSize, numel, at::kFloat, Reduction::kSum);
      for (int round = 0; round < 16; ++round) {
        const at::Tensor values = fractions_of(rank, numel, at::kFloat);
        const bool shared = (round & 1 << rank) != 0;
        const at::Tensor tensor = shared ? ranks.allocate(rank, numel) : at::empty({numel});
        tensor.copy_(values);
        ASSERT_TRUE(ranks.all_reduce(rank, tensor).ok());
        ASSERT_TRUE(at::equal(tensor, expected))
            << "rank " << rank << ", " << numel << " elements, round " << round;
      }
    }
  });
}

TEST(ShmEngine, ReducesSlicesAndTensorsInLaterSegments) {
  ShmRanks ranks(2);
  on_shm_ranks(2, [&](int rank) {
    constexpr int64_t kNumel = 20'000;
    // The ranks have their tensors in different places.
    const at::Tensor filler = ranks.allocate(rank, (12 << 20) + rank * 1000);
    const at::Tensor large = ranks.allocate(rank, 5 << 20);  // in a second segment
    const at::Tensor slice = large.narrow(0, 1000 + rank * 3, kNumel);
    large.fill_(-1);
    slice.copy_(fractions_of(rank, kNumel, at::kFloat));
    ASSERT_TRUE(ranks.all_reduce(rank, slice).ok());
    EXPECT_TRUE(at::equal(slice, combined_in_order(2, kNumel, at::kFloat, Reduction::kSum)));
    // The values around the slice are untouched.
    EXPECT_EQ(large.eq(-1).sum().item<int64_t>(), (5 << 20) - kNumel);
  });
}

TEST(ShmEngine, FreedMemoryIsUsedAgain) {
  ShmRanks ranks(2);
  on_shm_ranks(2, [&](int rank) {
    void* first = nullptr;
    for (int round = 0; round < 20; ++round) {
      const at::Tensor tensor = ranks.allocate(rank, 10'000);
      if (round == 0) first = tensor.data_ptr();
      ASSERT_EQ(tensor.data_ptr(), first);
      tensor.fill_(round + rank);
      ASSERT_TRUE(ranks.all_reduce(rank, tensor).ok());
      ASSERT_TRUE(tensor.eq(2 * round + 1).all().item<bool>()) << "round " << round;
    }
  });
}

// A rank that waits for longer sleeps, at most 50 ms at a time. Without a wake-up by the other rank
// ten rounds would take 250 ms or more. With it they take 50 ms, and more if the machine has other
// work, so the fastest of several attempts counts.
TEST(ShmEngine, RankThatComesLateWakesTheOthers) {
  constexpr auto kWoken = std::chrono::milliseconds(175);
  ShmRanks ranks(2);
  Duration fastest = Duration::max();
  for (int attempt = 0; attempt < 20 && fastest >= kWoken; ++attempt) {
    const Time start = Clock::real().now();
    on_shm_ranks(2, [&](int rank) {
      const at::Tensor tensor = at::ones({10});
      for (int round = 0; round < 10; ++round) {
        const Time late = after(std::chrono::milliseconds(rank == 1 ? 5 : 0));
        while (Clock::real().now() < late) std::this_thread::yield();
        ASSERT_TRUE(ranks.all_reduce(rank, tensor).ok());
      }
    });
    fastest = std::min(fastest, Clock::real().now() - start);
  }
  EXPECT_LT(fastest, kWoken);
}

// A group that one rank learns to have ended before the others do.
class EndableGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  void end() { stop_.request_stop(); }
  std::stop_token stop_token() const override { return stop_.get_token(); }

 private:
  std::stop_source stop_;
};

// Another tensor with the memory of `tensor`, which calls a function whenever it is asked for its
// number of elements.
class NoticingTensor final : public c10::TensorImpl {
 public:
  NoticingTensor(const at::Tensor& tensor, std::function<void()> notice)
      : TensorImpl(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype()),
        notice_(std::move(notice)) {
    set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    set_custom_sizes_strides(SizesStridesPolicy::CustomSizes);
  }

 protected:
  int64_t numel_custom() const override {
    notice_();
    return numel_default();
  }

 private:
  const std::function<void()> notice_;
};

// Rank 1 looks for the last time how large the tensor is when it begins to combine its part.
TEST(ShmEngine, ARankThatStopsInTheMiddleDoesNotSayThatItsPartIsDone) {
  LocalGroups groups(2);
  EndableGroup endable(groups[1]);
  std::vector<std::unique_ptr<CollectiveEngine>> engines(2);
  on_shm_ranks(2, [&](int rank) {
    Group& group = rank == 1 ? static_cast<Group&>(endable) : groups[0];
    engines[rank] = value_or_throw(make_shm_engine(group, after(seconds(30))));
  });
  int looks = 0, looks_of_a_call = 0;  // of rank 1
  const auto notice = [&] {
    if (++looks == 2 * looks_of_a_call) endable.end();
  };
  std::vector<at::Tensor> tensors(2);
  for (at::Tensor& tensor : tensors) tensor = engines[&tensor - &tensors[0]]->allocate(1 << 20);
  tensors[1] = at::Tensor(c10::make_intrusive<NoticingTensor>(tensors[1], notice));
  looks = 0;
  std::vector<absl::Status> statuses(2);
  for (const uint64_t call : {1, 2}) {
    on_shm_ranks(2, [&](int rank) {
      statuses[rank] = engines[rank]->run({.kind = CollectiveKind::kAllReduce,
                                           .sequence = call,
                                           .input = tensors[rank],
                                           .output = tensors[rank],
                                           .deadline = after(seconds(30))});
      if (!statuses[rank].ok()) groups[rank].fail(statuses[rank]);
    });
    if (call == 2) break;
    for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
    looks_of_a_call = looks;
  }
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(error_code(status), ErrorCode::kCancelled) << status;
  }
}

TEST(ShmEngine, AllocatesNothingInAFailedGroup) {
  ShmRanks ranks(2);
  const at::Tensor before = ranks.engines[0]->allocate(100);
  ASSERT_TRUE(before.defined());
  ranks.groups[1].fail(make_status(ErrorCode::kAborted, "the test ends the group"));
  EXPECT_FALSE(ranks.engines[0]->allocate(100).defined());
  ranks.engines.clear();
  before.fill_(1);  // Tensors outlive their engine.
  EXPECT_EQ(before.sum().item<int64_t>(), 100);
}

// Makes engines for two ranks, with the bytes of rank 1 altered. Expects that both fail alike.
void expect_no_engines(const AlteredGroup::Alter& alter, const std::string& culprit,
                       const std::string& why) {
  LocalGroups groups(2);
  AlteredGroup altered(groups[1], alter);
  on_shm_ranks(2, [&](int rank) {
    Group& group = rank == 1 ? static_cast<Group&>(altered) : groups[rank];
    const absl::Status status = make_shm_engine(group, after(seconds(30))).status();
    EXPECT_EQ(error_code(status), ErrorCode::kUnavailable) << status;
    EXPECT_THAT(describe(status),
                AllOf(HasSubstr(culprit), HasSubstr(why), HasSubstr("use another implementation")));
  });
}

TEST(ShmEngine, RanksOnDifferentMachinesAgreeThatTheyCannotShareMemory) {
  expect_no_engines(
      [](const std::string&, const std::string& bytes) {
        return absl::StrReplaceAll(bytes, {{boot_id(), "another-boot"}});
      },
      "rank 0 (/job:worker/task:0)", "on another machine (boot id another-boot");
}

TEST(ShmEngine, RanksAgreeThatOneHasNoMemory) {
  expect_no_engines(
      [](const std::string& key, const std::string& bytes) {
        return key == "shm/segments" ? "" : key == "shm/opened" ? "no memory is left" : bytes;
      },
      "rank 1 (/job:worker/task:1)", "no memory is left");
}

}  // namespace
}  // namespace trireme::internal
