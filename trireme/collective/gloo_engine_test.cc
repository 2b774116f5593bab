// Gloo listens where the cluster spec says, and is not used where its traffic must be encrypted.
#include "trireme/collective/gloo_engine.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_format.h"
#include "trireme/base/status.h"
#include "trireme/collective/engine_test.h"
#include "trireme/collective/forwarding_group.h"
#include "trireme/collective/local_group.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Gloo, EngineTest,
                         testing::Values(EngineUnderTest{.make_engine = make_gloo_engine,
                                                         .most_ranks = 3}));

// A member of a group whose addresses are those of the test.
class MemberElsewhere final : public ForwardingGroup {
 public:
  MemberElsewhere(Group& group, const std::vector<std::string>& addresses, bool encrypted)
      : ForwardingGroup(group), members_(group.members()), encrypted_(encrypted) {
    for (size_t i = 0; i < members_.size(); ++i) members_[i].address = addresses[i];
  }

  const std::vector<GroupMember>& members() const override { return members_; }
  bool encrypted() const override { return encrypted_; }

 private:
  std::vector<GroupMember> members_;
  const bool encrypted_;
};

// Makes the engines of two ranks, and returns them or their errors.
std::vector<absl::StatusOr<std::unique_ptr<CollectiveEngine>>> make_two(MemberElsewhere& first,
                                                                        MemberElsewhere& second) {
  std::vector<absl::StatusOr<std::unique_ptr<CollectiveEngine>>> made(2);
  std::jthread other([&] { made[1] = make_gloo_engine(second, after(seconds(30))); });
  made[0] = make_gloo_engine(first, after(seconds(30)));
  other.join();
  return made;
}

// Returns true if a socket of this network listens on the host.
bool listens_on(const std::string& host) {
  const std::string local = absl::StrFormat(" %08X:", inet_addr(host.c_str()));
  std::ifstream sockets("/proc/self/net/tcp");
  for (std::string line; std::getline(sockets, line);) {
    if (line.find(local) < 10 && line.find(" 00000000:0000 0A ") != std::string::npos) return true;
  }
  return false;
}

TEST(GlooEngine, ListensOnTheHostsOfTheClusterSpec) {
  LocalGroups groups(2);
  const std::vector<std::string> addresses = {"127.0.83.1:5000", "127.0.83.2:5000"};
  MemberElsewhere first(groups[0], addresses, false), second(groups[1], addresses, false);
  ASSERT_FALSE(listens_on("127.0.83.1"));
  const auto made = make_two(first, second);
  ASSERT_TRUE(made[0].ok() && made[1].ok()) << made[0].status() << made[1].status();
  EXPECT_TRUE(listens_on("127.0.83.1"));
  EXPECT_TRUE(listens_on("127.0.83.2"));
}

TEST(GlooEngine, HostOfAnotherMachineIsAnErrorOfAllRanks) {
  LocalGroups groups(2);
  const std::vector<std::string> addresses = {"127.0.83.1:5000", "192.0.2.1:5000"};
  MemberElsewhere first(groups[0], addresses, false), second(groups[1], addresses, false);
  const auto made = make_two(first, second);
  EXPECT_THAT(std::string(made[0].status().message()),
              AllOf(HasSubstr("rank 1 (/job:worker/task:1)"), HasSubstr("192.0.2.1")));
  EXPECT_THAT(std::string(made[1].status().message()), HasSubstr("192.0.2.1"));
}

TEST(GlooEngine, GroupWithCertificatesIsRejected) {
  LocalGroups groups(2);
  const std::vector<std::string> addresses = {"127.0.0.1:5000", "127.0.0.1:5001"};
  MemberElsewhere first(groups[0], addresses, true), second(groups[1], addresses, true);
  for (const auto& made : make_two(first, second)) {
    EXPECT_EQ(error_code(made.status()), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(std::string(made.status().message()),
                AllOf(HasSubstr("would not be encrypted"), HasSubstr("RING")));
  }
}

TEST(GlooEngine, DtypeThatGlooCannotCombineIsAnError) {
  EngineRanks ranks({make_gloo_engine}, 2);
  ranks.on_all([&](int rank) {
    const at::Tensor tensor = at::ones({4}, at::kShort);
    const absl::Status status =
        ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor});
    EXPECT_EQ(error_code(status), ErrorCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("int16"), HasSubstr("RING")));
  });
}

int64_t thread_count() {
  const auto threads = std::filesystem::directory_iterator("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

// Rank 1 announces the call, but does not take part, as if it were frozen just then.
TEST(GlooEngine, OperationOfGlooEndsWithTheGroupOrTheDeadline) {
  const int64_t threads = thread_count();
  for (const bool fails : {true, false}) {
    EngineRanks ranks({make_gloo_engine}, 2);
    const at::Tensor tensor = at::ones({300000});
    const CollectiveCall call = {
        .kind = CollectiveKind::kAllReduce, .tag = "frozen", .input = tensor, .output = tensor};
    ranks.group(1).send(0,
                        {.sequence = 1,
                         .call_fingerprint = fingerprint(call),
                         .call_description = describe_call(call)},
                        [](const absl::Status&) {});
    std::jthread failing([&] {
      // Rank 0 announces the call, and then starts Gloo.
      const auto announced = ranks.group(1).receive(1, after(seconds(30)));
      EXPECT_TRUE(announced.ok()) << announced.status();
      if (fails) ranks.group(1).fail(make_status(ErrorCode::kCancelled, "rank 1 is frozen"));
    });
    const Time start = Clock::real().now();
    const absl::Status status = ranks.run(0, call, fails ? seconds(60) : seconds(1));
    EXPECT_LT(Clock::real().now() - start, seconds(5));
    failing.join();
    if (fails) {
      EXPECT_EQ(status.message(), "rank 1 is frozen");
    } else {
      EXPECT_EQ(error_code(status), ErrorCode::kDeadlineExceeded) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(describe_call(call)));
    }
  }
  // The operations ended, since otherwise the engines would have left their threads behind.
  EXPECT_TRUE(wait_until([&] { return thread_count() <= threads; }, seconds(5)));
}

}  // namespace
}  // namespace trireme::internal
