#include "trireme/collective/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "trireme/base/status.h"
#include "trireme/collective/engine_test.h"
#include "trireme/collective/forwarding_group.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

// Calls `body` for each member, on a thread of its own. Returns the errors that it throws, by rank.
std::vector<absl::Status> errors_of_ranks(const std::vector<std::shared_ptr<Group>>& members,
                                          CommunicationImplementation implementation,
                                          const std::function<void(Communicator&)>& body) {
  std::vector<absl::Status> errors(members.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = try_call([&] {
        Communicator communicator(members[rank], implementation, seconds(30), seconds(30));
        body(communicator);
      });
    });
  }
  threads.clear();
  return errors;
}

// A member that throws when it sends. Counts the calls that begin and end.
class ThrowingGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  void send(int, Parcel, std::function<void(const absl::Status&)>) override {
    throw std::runtime_error("the parcel is too heavy");
  }
  void begin_call(const CollectiveCall&) override { ++begun; }
  void end_call() override { ++ended; }

  int begun = 0, ended = 0;
};

// The engine of Gloo, unlike the others, lets the exception pass. The call is freed afterwards, so
// the group must not refer to it any more.
TEST(Communicator, AnEngineThatThrowsEndsItsCallAndTheGroup) {
  const auto groups = make_local_groups(2);
  const auto throwing = std::make_shared<ThrowingGroup>(*groups[0]);
  const auto errors = errors_of_ranks(
      {throwing, groups[1]}, CommunicationImplementation::kGloo,
      [](Communicator& communicator) { communicator.all_reduce(at::ones({4})).wait(); });
  EXPECT_EQ(throwing->begun, 1);
  EXPECT_EQ(throwing->ended, 1);
  for (const absl::Status& error : errors) {
    EXPECT_EQ(error_code(error), ErrorCode::kInternal) << error;
    EXPECT_EQ(error.message(), "the parcel is too heavy");
  }
}

void expect_no_mean(const std::function<void()>& call) {
  const absl::Status error = try_call(call);
  EXPECT_EQ(error_code(error), ErrorCode::kInvalidArgument) << error;
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("'counts'"), HasSubstr("int64"), HasSubstr("kSum")));
}

TEST(Communicator, MeansOfWholeNumbersAreRejectedAndTheGroupGoesOn) {
  for (const int size : {1, 2}) {
    const auto errors = errors_of_ranks(
        make_local_groups(size), CommunicationImplementation::kRing,
        [&](Communicator& communicator) {
          const CollectiveOptions options = {.tag = "counts"};
          const at::Tensor values = at::full({2 * size}, 3, at::kLong);
          const at::Tensor part = at::zeros({2}, at::kLong);
          expect_no_mean([&] { communicator.all_reduce(values, Reduction::kMean, options); });
          expect_no_mean(
              [&] { communicator.reduce_scatter(values, part, Reduction::kMean, options); });
          communicator.all_reduce(values, Reduction::kSum, options).wait();
          EXPECT_TRUE(values.eq(3 * size).all().item<bool>()) << values;
          const at::Tensor fractions =
              at::full({2}, 1.0f + static_cast<float>(communicator.rank()));
          communicator.all_reduce(fractions, Reduction::kMean, options).wait();
          EXPECT_TRUE(fractions.eq(0.5 * (1 + size)).all().item<bool>()) << fractions;
          communicator.barrier().wait();
        });
    for (const absl::Status& error : errors) EXPECT_TRUE(error.ok()) << error;
  }
}

}  // namespace
}  // namespace trireme::internal
