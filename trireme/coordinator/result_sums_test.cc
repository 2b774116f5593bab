#include "trireme/coordinator/result_sums.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <string>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(ResultSums, AddsTensorByTensor) {
  ResultSums sums;
  EXPECT_TRUE(sums.get().empty());
  for (int run = 1; run <= 4; ++run) {
    ASSERT_TRUE(sums.add(Tensors{at::full({2}, run), at::full({}, 0.5, at::kDouble), {}}).ok());
  }
  ASSERT_EQ(sums.get().size(), 3u);
  EXPECT_TRUE(sums.get()[0].equal(at::full({2}, 10)));
  EXPECT_EQ(sums.get()[1].item<double>(), 2);
  EXPECT_EQ(sums.get()[1].scalar_type(), at::kDouble);
  EXPECT_FALSE(sums.get()[2].defined());
}

TEST(ResultSums, LeavesTheResultsOfRunsUnchanged) {
  ResultSums sums;
  const Tensors results = {at::ones({3})};
  for (int run = 0; run < 5; ++run) ASSERT_TRUE(sums.add(results).ok());
  EXPECT_TRUE(results[0].equal(at::ones({3})));
  EXPECT_TRUE(sums.get()[0].equal(at::full({3}, 5.f)));
}

TEST(ResultSums, ContinuesWithTheSumsOfEarlierRuns) {
  const Tensors earlier = {at::full({2}, 7)};
  ResultSums sums(earlier, 3);
  for (int run = 0; run < 2; ++run) ASSERT_TRUE(sums.add({at::ones({2}, at::kLong)}).ok());
  EXPECT_TRUE(sums.get()[0].equal(at::full({2}, 9)));
  EXPECT_TRUE(earlier[0].equal(at::full({2}, 7)));
  EXPECT_EQ(sums.add({}).message().substr(0, 6), "run 6 ");
}

TEST(ResultSums, RejectsResultsThatDiffer) {
  const auto problem = [](const Tensors& first, const Tensors& second) {
    ResultSums sums;
    EXPECT_TRUE(sums.add(first).ok());
    const absl::Status status = sums.add(second);
    EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string remedy =
      "; results can be added up only if all runs return tensors of the same shapes";
  EXPECT_EQ(problem({at::ones({2})}, {at::ones({3})}),
            "result 0 is Float [3] in run 2 and Float [2] before" + remedy);
  EXPECT_EQ(problem({at::ones({2})}, {at::ones({2}, at::kDouble)}),
            "result 0 is Double [2] in run 2 and Float [2] before" + remedy);
  EXPECT_EQ(problem({at::ones({2})}, {at::Tensor()}),
            "result 0 is undefined in run 2 and Float [2] before" + remedy);
  EXPECT_EQ(problem({at::ones({2})}, {}),
            "run 2 returned 0 tensors and the runs before it 1" + remedy);
}

}  // namespace
}  // namespace trireme::internal
