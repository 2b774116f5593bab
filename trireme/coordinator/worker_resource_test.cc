#include "trireme/coordinator/worker_resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/status.h"
#include "trireme/coordinator/allotted_elements.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WorkerResourceTest : public testing::Test {
 protected:
  WorkerResourceTest() { resources_.set_workers({3, 5}); }

  std::shared_ptr<WorkerResource> make() {
    return resources_.make([](const InputContext&) { return Dataset::range(100).shuffle(9); });
  }
  static std::vector<IteratorPosition> positions(const WorkerResource& resource) {
    return value_or_throw(resource.positions());
  }

  WorkerResources resources_{[] { return 1; }};
};

TEST_F(WorkerResourceTest, SeedsFollowFromTheJobAlone) {
  const auto first = make(), second = make();
  WorkerResources others([] { return 1; });
  others.set_workers({0, 1});
  const auto again = others.make([](const InputContext&) { return Dataset::range(1); });
  EXPECT_EQ(positions(*first), positions(*again));
  EXPECT_NE(positions(*first)[0].seed, positions(*first)[1].seed);
  EXPECT_NE(positions(*first)[0].seed, positions(*second)[0].seed);
  // A worker that is added gets the number of a pipeline that another one has.
  resources_.prepare_workers({5, 6});
  resources_.set_workers({5, 6});
  EXPECT_NE(positions(*first)[0].seed, positions(*first)[1].seed);
}

void allot(const ClosurePtr& closure, int worker) {
  EXPECT_EQ(allot_elements({closure}, worker, nullptr).ready.size(), 1u);
}

// Returns the id by which workers know a worker's iterator.
uint64_t edition_of(const WorkerResource& resource, int worker) {
  return resource.account()->iterator(worker)->edition;
}

std::shared_ptr<Closure> closure_of(const std::shared_ptr<WorkerResource>& resource,
                                    uint64_t elements, uint32_t repeat = 1) {
  auto function = std::make_shared<ClosureFunction>();
  function->draws = {elements};
  auto made = std::make_shared<Closure>();
  made->function = made->current = std::move(function);
  made->resources = {resource};
  made->accounts = {resource->account()};
  made->repeat = repeat;
  return made;
}

TEST_F(WorkerResourceTest, AClosureKeepsItsElementsUntilTheyAreUsedOrReturned) {
  const auto resource = make();
  const auto first = closure_of(resource, 1, 3), second = closure_of(resource, 2);
  allot(first, 5);
  allot(second, 5);
  EXPECT_THAT(first->allotted[0].numbers, ElementsAre(NumberSpan{0, 3}));
  EXPECT_THAT(second->allotted[0].numbers, ElementsAre(NumberSpan{3, 2}));
  EXPECT_EQ(positions(*resource)[1].next, 0u) << "elements of closures in flight are not used";
  use_elements(*second);
  EXPECT_THAT(positions(*resource)[1],
              (IteratorPosition{positions(*resource)[1].seed, 5, {0, 1, 2}}));
  allot(first, 3);
  EXPECT_EQ(first->allotted[0].worker, 5) << "another worker runs it with the same elements";
  return_elements(*first);
  const auto third = closure_of(resource, 4);
  allot(third, 5);
  EXPECT_THAT(third->allotted[0].numbers, ElementsAre(NumberSpan{0, 3}, NumberSpan{5, 1}));
  third->may_have_pushed = true;
  third->release();
  EXPECT_THAT(positions(*resource)[1].returned, ElementsAre());
  EXPECT_EQ(positions(*resource)[1].next, 6u);
}

TEST_F(WorkerResourceTest, AFunctionThatWasCapturedAgainMayDrawOtherNumbersOfElements) {
  const auto resource = make();
  const auto closure = closure_of(resource, 2);
  allot(closure, 3);
  closure->current = closure_of(resource, 3)->current;
  allot(closure, 3);
  EXPECT_THAT(closure->allotted[0].numbers, ElementsAre(NumberSpan{0, 3}));
}

TEST_F(WorkerResourceTest, ElementsOfARemovedWorkerAreReplaced) {
  const auto resource = make();
  const auto closure = closure_of(resource, 2);
  allot(closure, 3);
  resources_.set_workers({5});
  allot(closure, 5);
  EXPECT_EQ(closure->allotted[0].worker, 5);
  EXPECT_EQ(closure->allotted[0].edition, edition_of(*resource, 5));
}

TEST_F(WorkerResourceTest, ATensorIsThatOfTheWorkerThatRunsTheClosure) {
  const auto resource = resources_.make(
      [](const InputContext&) { return Dataset::range(1).repeat(); }, /*is_constant=*/true);
  const auto closure = closure_of(resource, 1);
  allot(closure, 3);
  allot(closure, 5);
  EXPECT_EQ(closure->allotted[0].worker, 5);
}

TEST_F(WorkerResourceTest, ARestoredResourceIsANewEdition) {
  const auto resource = make();
  const auto late = closure_of(resource, 1);
  allot(late, 3);
  const uint64_t before = edition_of(*resource, 3);
  const std::vector<IteratorPosition> saved = {{7, 4, {1}}, {8, 0, {}}};
  throw_if_error(resource->restore(saved));
  EXPECT_EQ(positions(*resource), saved);
  EXPECT_NE(edition_of(*resource, 3), before);
  EXPECT_THAT(resources_.unused({before, edition_of(*resource, 3)}), ElementsAre(before));
  use_elements(*late);
  EXPECT_EQ(positions(*resource), saved) << "an answer for the old edition arrived late";
  const auto next = closure_of(resource, 1);
  allot(next, 3);
  use_elements(*next);
  EXPECT_EQ(positions(*resource)[0], (IteratorPosition{7, 4, {}}));
}

TEST_F(WorkerResourceTest, HasNoPositionWhileClosuresFromBeforeARestartAreNotDone) {
  const auto resource = make();
  const auto closure = closure_of(resource, 1);
  allot(closure, 3);
  resource->restart();
  const absl::Status status = resource->positions().status();
  EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("join()"));
  closure->release();
  EXPECT_EQ(positions(*resource).size(), 2u);
}

TEST_F(WorkerResourceTest, OtherNumbersOfWorkersMustBeAtTheStart) {
  const auto resource = make();
  const auto before = positions(*resource);
  throw_if_error(resource->restore({{7, 0, {}}}));
  EXPECT_EQ(positions(*resource), before);
  const absl::Status status = resource->restore({{7, 1, {}}, {8, 0, {}}, {9, 0, {}}});
  EXPECT_EQ(error_code(status), ErrorCode::kInvalidArgument);
  EXPECT_THAT(trireme::describe(status), HasSubstr("saved with 3 workers, and there are 2 now"));
  EXPECT_THAT(trireme::describe(status), HasSubstr("range(0, 100).shuffle(9)"));
  EXPECT_EQ(error_code(resource->restore({{7, 1, {3}}, {8, 0, {}}})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(positions(*resource), before);
}

}  // namespace
}  // namespace trireme::internal
