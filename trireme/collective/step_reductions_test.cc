#include "trireme/collective/step_reductions.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/collective/engine_test.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

c10::OperatorHandle step_operator(const char* name) {
  register_step_reductions();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// A replay copies results that do not say whose memory they share, if that is larger than they are.
TEST(StepReductions, SumsAreKnownToShareTheMemoryOfTheirBucket) {
  EXPECT_TRUE(may_share_memory(step_operator(kFinishSum), 0, 0));
}

// Calls the operators that make sums in a group of one rank.
class StepSums : public testing::Test {
 protected:
  at::Tensor start(const std::vector<at::Tensor>& values) const {
    return step_operator(kStartSum)
        .typed<at::Tensor(at::TensorList, const std::optional<at::Tensor>&, int64_t, int64_t,
                          std::string)>()
        .call(values, std::nullopt, alone_.number(), -1, "bucket");
  }
  // `sizes` has the number of dimensions of each sum, followed by these.
  std::vector<at::Tensor> finish(const at::Tensor& bucket, at::IntArrayRef sizes) const {
    return step_operator(kFinishSum)
        .typed<std::vector<at::Tensor>(const at::Tensor&, at::IntArrayRef, int64_t, int64_t)>()
        .call(bucket, sizes, static_cast<int64_t>(bucket.scalar_type()), alone_.number());
  }

 private:
  const StepCommunicator alone_{std::make_shared<Communicator>(
      make_local_groups(1)[0], CommunicationImplementation::kRing, std::chrono::seconds(30))};
};

TEST_F(StepSums, ASmallSumDoesNotKeepTheBucketOfALargeOne) {
  const at::Tensor weight = at::arange(1 << 20).to(at::kFloat);
  const at::Tensor loss = at::full({}, 7.0f);
  const at::Tensor bucket = start({weight, loss});
  const std::vector<at::Tensor> sums = finish(bucket, {1, 1 << 20, 0});
  EXPECT_TRUE(sums[0].equal(weight));
  EXPECT_TRUE(sums[0].is_alias_of(bucket));
  EXPECT_TRUE(sums[1].equal(loss));
  EXPECT_EQ(sums[1].storage().nbytes(), sizeof(float));
}

// All empty buckets have the same data, and those of several dtypes are in flight at once.
TEST_F(StepSums, EmptyBucketsAreToldApart) {
  std::vector<at::Tensor> buckets;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor empty = at::empty({0, 3}, dtype);
    buckets.push_back(start({empty}));
  }
  for (const at::Tensor& bucket : buckets) {
    EXPECT_EQ(finish(bucket, {2, 0, 3})[0].sizes(), (at::IntArrayRef{0, 3}));
  }
}

// Rank 1 says that it has other numbers of rows than a tensor can have.
TEST(StepReductions, ImpossibleNumbersOfRowsEndTheGroup) {
  for (const int64_t rows : {int64_t{-1}, int64_t{1} << 50}) {
    const auto groups = make_local_groups(2);
    std::vector<std::string> errors(2);
    std::vector<std::thread> ranks;
    for (int rank : {0, 1}) {
      ranks.emplace_back([&, rank] {
        Communicator communicator(groups[rank], CommunicationImplementation::kRing,
                                  std::chrono::seconds(30), std::chrono::seconds(30));
        try {
          if (rank == 0) concatenate_over_ranks(communicator, at::ones({2, 3}), "test");
          communicator
              .all_gather(at::full({1}, rows, at::kLong), at::empty({2}, at::kLong),
                          {.tag = "test, rows"})
              .wait();
          communicator.barrier().wait();
        } catch (const Error& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const std::string& error : errors) {
      EXPECT_THAT(error, testing::HasSubstr(absl::StrCat("rank 1 says that it has ", rows)));
    }
  }
}

}  // namespace
}  // namespace trireme::internal
