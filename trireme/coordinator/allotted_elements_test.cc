#include "trireme/coordinator/allotted_elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>

#include "trireme/base/status.h"
#include "trireme/coordinator/closure_results.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/coordinator/worker_resources.h"
#include "trireme/data/ranges.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const NumberSpan kEnd{kNoElement, 1};

// Closures that draw from a dataset of 7 elements that workers share.
class AllottedElementsTest : public testing::Test {
 protected:
  ClosurePtr make(uint32_t repeat = 1) {
    auto function = std::make_shared<ClosureFunction>();
    function->draws = {1};
    auto closure = std::make_shared<Closure>();
    closure->function = closure->current = std::move(function);
    closure->resources = {resource_};
    closure->accounts = {resource_->account()};
    closure->repeat = repeat;
    return closure;
  }
  AllottedClosures allot(const ClosurePtr& closure) {
    return allot_elements({closure}, 0, [this](const ClosurePtr&) { ++requeued_; });
  }
  bool is_ready(const ClosurePtr& closure) { return allot(closure).ready.size() == 1; }
  bool waits(const ClosurePtr& closure) { return allot(closure).waiting.size() == 1; }
  bool ends(const ClosurePtr& closure) { return allot(closure).ended.size() == 1; }
  bool is_requeued(int times) {
    return wait_until([&] { return requeued_ == times; }, seconds(10));
  }
  static std::vector<NumberSpan> numbers_of(const ClosurePtr& closure) {
    return closure->allotted[0].numbers;
  }

  WorkerResources resources_{[] { return 1; }};
  std::shared_ptr<WorkerResource> resource_ =
      resources_.make_shared(Dataset::range(7), /*epochs=*/1);
  std::atomic<int> requeued_ = 0;
};

TEST_F(AllottedElementsTest, AClosureWaitsWhileOthersMayReturnElements) {
  const auto all = make(7), one = make();
  ASSERT_TRUE(is_ready(all));
  ASSERT_TRUE(waits(one));
  return_elements(*all);
  ASSERT_TRUE(is_requeued(1));
  ASSERT_TRUE(is_ready(one));
  EXPECT_THAT(numbers_of(one), ElementsAre(NumberSpan{0, 1}));
}

TEST_F(AllottedElementsTest, AClosureEndsWhenAllElementsWereUsed) {
  const auto all = make(7), one = make();
  ASSERT_TRUE(is_ready(all));
  ASSERT_TRUE(waits(one));
  use_elements(*all);
  ASSERT_TRUE(is_requeued(1));
  EXPECT_TRUE(ends(one));
  EXPECT_EQ(error_code(result_at_end(*one, 0, no_more_elements(*one, 0)).status()),
            ErrorCode::kEndOfData);
}

TEST_F(AllottedElementsTest, AClosureGetsTheElementsForAsManyRunsAsPossible) {
  const auto closure = make(10);
  ASSERT_TRUE(is_ready(closure));
  EXPECT_THAT(numbers_of(closure), ElementsAre(NumberSpan{0, 7}, kEnd));
  ASSERT_TRUE(is_ready(closure)) << "it is sent again";
  EXPECT_THAT(numbers_of(closure), ElementsAre(NumberSpan{0, 7}, kEnd));
  use_elements_of_runs(*closure, 7, {});
  EXPECT_THAT(numbers_of(closure), ElementsAre(kEnd)) << "completed runs do not run again";
  EXPECT_TRUE(settle_end(*closure, {.number = kNoElement}));
  EXPECT_TRUE(ends(closure));
}

TEST_F(AllottedElementsTest, AClosureGetsOtherElementsInPlaceOfThoseThatDoNotExist) {
  const auto closure = make(3);
  ASSERT_TRUE(is_ready(closure));
  // A dataset with a filter has fewer elements than its source.
  use_elements_of_runs(*closure, 2, {});
  EXPECT_THAT(numbers_of(closure), ElementsAre(NumberSpan{2, 1}));
  EXPECT_TRUE(settle_end(*closure, {.number = 2}));
  EXPECT_TRUE(ends(closure)) << "there is only one range";
}

TEST_F(AllottedElementsTest, ElementsForWhichAClosureMayHavePushedAreNotReturned) {
  const auto first = make(10), other = make();
  ASSERT_TRUE(is_ready(first));
  return_elements(*first);
  ASSERT_TRUE(is_ready(other));
  ASSERT_TRUE(waits(first)) << "the other closure has element 0";
  use_elements(*other);
  ASSERT_TRUE(is_requeued(1));
  ASSERT_TRUE(is_ready(first));
  EXPECT_THAT(numbers_of(first), ElementsAre(NumberSpan{1, 6}, kEnd));
  first->may_have_pushed = true;
  const auto late = make();
  ASSERT_TRUE(waits(late));
  ASSERT_TRUE(is_ready(first)) << "it must not wait, since the elements that it has are not free";
  EXPECT_THAT(numbers_of(first), ElementsAre(NumberSpan{1, 6}, kEnd));
  first->release();
  ASSERT_TRUE(is_requeued(2));
  EXPECT_TRUE(ends(late));
}

TEST_F(AllottedElementsTest, ClosuresThatWaitAreRequeuedOnRequest) {
  const auto all = make(7), one = make();
  ASSERT_TRUE(is_ready(all));
  ASSERT_TRUE(waits(one));
  resources_.notify();
  EXPECT_TRUE(is_requeued(1));
}

TEST_F(AllottedElementsTest, AClosureKeepsTheEpochInWhichItWasScheduled) {
  const auto before = make();
  resource_->restart();
  const auto after = make();
  ASSERT_TRUE(is_ready(after));
  use_elements(*after);
  ASSERT_TRUE(is_ready(before));
  EXPECT_THAT(numbers_of(before), ElementsAre(NumberSpan{0, 1}));
  std::set<uint64_t> editions;
  resource_->add_editions(editions);
  EXPECT_EQ(editions.size(), 2u);
  use_elements(*before);
  EXPECT_THAT(before->allotted, IsEmpty());
}

// A faulty worker must not end an epoch.
TEST_F(AllottedElementsTest, RejectsAnEndBeforeElementsThatExist) {
  const auto closure = make(3), rest = make(5);
  ASSERT_TRUE(is_ready(closure));
  for (const uint64_t number : {0, 2}) {
    const absl::Status status = check_end(*closure, {.number = number});
    EXPECT_EQ(error_code(status), ErrorCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("before elements that exist"));
  }
  EXPECT_THAT(std::string(check_end(*closure, {.number = 3}).message()),
              HasSubstr("at an element that it was not to draw"));
  EXPECT_FALSE(check_end(*closure, {.number = kNoElement}).ok()) << "it was not allotted the end";
  EXPECT_FALSE(check_end(*closure, {.draw = 1}).ok());
  use_elements(*closure);
  ASSERT_TRUE(is_ready(rest));
  EXPECT_TRUE(check_end(*rest, {.number = kNoElement}).ok());
}

TEST_F(AllottedElementsTest, AWorkerThatReportsAWrongEndIsNamed) {
  const auto closure = make(3);
  ASSERT_TRUE(is_ready(closure));
  RunClosuresResponse answer;
  std::vector<at::Tensor> tensors;
  set_answer({.result = make_status(ErrorCode::kEndOfData, "the data has ended"),
              .end = DataEnd{.number = 1},
              .runs_done = 1},
             *answer.add_results(), tensors);
  const PsWatch no_servers({}, Credentials::loopback(), {}, nullptr, nullptr);
  const ClosureResults sorted =
      sort_results({closure}, answer, tensors, no_servers, "/job:worker/task:2");
  ASSERT_EQ(sorted.finished.size(), 1u);
  EXPECT_EQ(error_origin(sorted.finished[0].result.status()).task, "/job:worker/task:2");
}

TEST_F(AllottedElementsTest, AcceptsTheEndOfARangeWhoseLengthIsNotKnown) {
  resource_ = resources_.make_shared(
      Dataset::range(7).filter([](const at::Tensor& number) { return number.gt(3); }), 1);
  const auto closure = make(3);
  ASSERT_TRUE(is_ready(closure));
  EXPECT_TRUE(check_end(*closure, {.number = 2}).ok());
  EXPECT_FALSE(check_end(*closure, {.number = 3}).ok());
}

}  // namespace
}  // namespace trireme::internal
