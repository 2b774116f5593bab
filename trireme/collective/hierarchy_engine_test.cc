// The hierarchy passes the tests of all engines (engine_test.h) with several divisions into hosts,
// and between servers over gRPC. The choice of the engine follows the hosts.
#include "trireme/collective/hierarchy_engine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trireme/base/status.h"
#include "trireme/collective/altered_group.h"
#include "trireme/collective/choose_engine.h"
#include "trireme/collective/engine_test.h"
#include "trireme/collective/find_hosts.h"
#include "trireme/collective/forwarding_group.h"
#include "trireme/collective/local_group.h"
#include "trireme/collective/server_groups.h"
#include "trireme/rpc/shared_segment.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Hosts = std::vector<std::vector<int>>;
using HostOf = int (*)(int rank);

int two_on_each(int rank) {
  return rank / 2;
}
int in_turns(int rank) {
  return rank % 2;
}
int on_three(int rank) {
  return rank < 3 ? rank % 2 : 2;
}

absl::StatusOr<std::unique_ptr<CollectiveEngine>> make_found_hierarchy(Group& group,
                                                                       Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const Hosts hosts, find_hosts(group, deadline));
  return make_hierarchy_engine(group, hosts, deadline);
}

// Returns members that have the boot ids of several machines.
LocalGroups groups_on_hosts(int size, HostOf host_of) {
  std::vector<std::string> boot_ids;
  for (int rank = 0; rank < size; ++rank) boot_ids.push_back(absl::StrCat("boot-", host_of(rank)));
  return LocalGroups(size, /*scatter=*/false, boot_ids);
}

template <HostOf kHostOf>
std::vector<std::shared_ptr<Group>> make_groups_on_hosts(int size) {
  const auto groups = std::make_shared<LocalGroups>(groups_on_hosts(size, kHostOf));
  std::vector<std::shared_ptr<Group>> members;
  for (int rank = 0; rank < size; ++rank) members.emplace_back(groups, &(*groups)[rank]);
  return members;
}

// Returns members that are servers of this machine, but tell each other that only two of them at a
// time can open each other's memory.
std::vector<std::shared_ptr<Group>> make_servers_on_hosts(int size) {
  struct Elsewhere {
    explicit Elsewhere(std::shared_ptr<Group> server)
        : server(std::move(server)),
          group(*this->server, [this](const std::string& key, const std::string& bytes) {
            if (key != "hosts/opened") return bytes;
            std::string opened = bytes;
            for (int rank = 0; rank < group.size(); ++rank) {
              if (two_on_each(rank) != two_on_each(group.rank())) opened[rank] = '-';
            }
            return opened;
          }) {}
    const std::shared_ptr<Group> server;
    AlteredGroup group;
  };
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& server : make_server_groups(size)) {
    const auto elsewhere = std::make_shared<Elsewhere>(server);
    groups.emplace_back(elsewhere, &elsewhere->group);
  }
  return groups;
}

INSTANTIATE_TEST_SUITE_P(Hierarchy, EngineTest,
                         testing::Values(EngineUnderTest{make_found_hierarchy,
                                                         make_groups_on_hosts<two_on_each>}));
INSTANTIATE_TEST_SUITE_P(HierarchyInTurns, EngineTest,
                         testing::Values(EngineUnderTest{make_found_hierarchy,
                                                         make_groups_on_hosts<in_turns>}));
INSTANTIATE_TEST_SUITE_P(HierarchyOverGrpc, EngineTest,
                         testing::Values(EngineUnderTest{make_found_hierarchy,
                                                         make_servers_on_hosts, 4}));

void on_members(int size, const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

// Two hosts agree within themselves, but not with each other. Only their leaders meet, whose ranks
// among the leaders are not those in the group.
TEST(HierarchyEngine, CallsOfHostsThatDifferNameTheLeaders) {
  for (const CollectiveKind kind : {CollectiveKind::kBarrier, CollectiveKind::kAllGather}) {
    EngineRanks ranks({make_found_hierarchy, make_groups_on_hosts<on_three>}, 5);
    ranks.on_all([&](int rank) {
      CollectiveCall call = {.kind = kind, .tag = rank < 3 ? "two hosts" : "another host"};
      if (kind == CollectiveKind::kAllGather) {
        call.input = at::ones({4});
        call.output = at::ones({20});
      }
      const absl::Status status = ranks.run(rank, call);
      EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("rank 3 (/job:worker/task:3) is"), HasSubstr("'two hosts'"),
                        HasSubstr("'another host'"), testing::Not(HasSubstr("rank 4")),
                        testing::Not(HasSubstr("rank 2"))));
    });
  }
}

// Rank 3 is not a leader. The leader of its host waits for it in shared memory, and all others for
// that leader.
TEST(HierarchyEngine, MissingRankOfAnotherHostIsNamed) {
  EngineRanks ranks({make_found_hierarchy, make_groups_on_hosts<two_on_each>}, 4);
  ranks.on_all([&](int rank) {
    ASSERT_TRUE(ranks.run(rank, {.kind = CollectiveKind::kBarrier}).ok());  // All are ready.
    if (rank == 3) return;
    const at::Tensor tensor = at::ones({1000});
    const absl::Status status =
        ranks.run(rank, {.kind = CollectiveKind::kAllReduce, .input = tensor, .output = tensor},
                  std::chrono::milliseconds(1500));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("waited for rank 3 (/job:worker/task:3), which did not make this call"));
  });
}

// A member that receives no parcels.
class DeafGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;
  absl::StatusOr<Parcel> receive(uint64_t, Time) override {
    return make_status(ErrorCode::kDataLoss, "the parcel was lost");
  }
};

// The leader fails between its steps. Its next call must not be taken for the last step, for which
// rank 1 waits.
TEST(HierarchyEngine, RankThatFailedMakesNoFurtherSteps) {
  LocalGroups groups = groups_on_hosts(3, two_on_each);
  DeafGroup deaf(groups[0]);
  on_members(3, [&](int rank) {
    Group& group = rank == 0 ? static_cast<Group&>(deaf) : groups[rank];
    const auto engine = value_or_throw(make_found_hierarchy(group, after(seconds(30))));
    const at::Tensor tensor = at::ones({10});
    const auto all_reduce = [&](uint64_t sequence) {
      return engine->run({.kind = CollectiveKind::kAllReduce,
                          .sequence = sequence,
                          .input = tensor,
                          .output = tensor,
                          .deadline = after(seconds(30))});
    };
    if (rank == 0) {
      EXPECT_EQ(all_reduce(1).message(), "the parcel was lost");
      EXPECT_EQ(all_reduce(2).message(), "the parcel was lost");
      deaf.fail(make_status(ErrorCode::kCancelled, "the test ends the group"));
    } else if (rank == 1) {
      EXPECT_EQ(all_reduce(1).message(), "the test ends the group");
    }
  });
}

TEST(HierarchyEngine, AllocatedTensorsGiveTheSameBitsAsOthers) {
  constexpr int kSize = 4;
  for (const int64_t numel : {100, 100'003}) {
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < kSize; ++rank) inputs.push_back(at::randn({numel}));
    LocalGroups groups = groups_on_hosts(kSize, two_on_each);
    std::vector<at::Tensor> results(2 * kSize);
    on_members(kSize, [&](int rank) {
      const auto engine = value_or_throw(make_found_hierarchy(groups[rank], after(seconds(30))));
      for (const bool shared : {false, true}) {
        const at::Tensor memory = engine->allocate(numel * 4);
        ASSERT_TRUE(memory.defined());
        const at::Tensor tensor = shared ? memory.view(at::kFloat) : at::empty({numel});
        tensor.copy_(inputs[rank]);
        const absl::Status status = engine->run({.kind = CollectiveKind::kAllReduce,
                                                 .reduction = Reduction::kMean,
                                                 .sequence = shared ? 2u : 1u,
                                                 .input = tensor,
                                                 .output = tensor,
                                                 .deadline = after(seconds(30))});
        ASSERT_TRUE(status.ok()) << status;
        results[2 * rank + shared] = tensor.clone();
      }
    });
    EXPECT_TRUE(at::allclose(results[0], at::stack(inputs).mean(0), 1e-4, 1e-4));
    for (const at::Tensor& result : results) EXPECT_TRUE(at::equal(result, results[0]));
  }
}

// Finds the hosts of all members, and expects that all find the same.
Hosts hosts_of(const std::vector<Group*>& groups) {
  const int size = static_cast<int>(groups.size());
  std::vector<Hosts> found(size);
  on_members(size, [&](int rank) {
    found[rank] = value_or_throw(find_hosts(*groups[rank], after(seconds(30))));
  });
  for (const Hosts& hosts : found) EXPECT_EQ(hosts, found[0]);
  return found[0];
}

TEST(FindHosts, DividesByBootId) {
  LocalGroups groups(5, false, {"a", "b", "a", "c", "b"});
  EXPECT_THAT(hosts_of({&groups[0], &groups[1], &groups[2], &groups[3], &groups[4]}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 4), ElementsAre(3)));
}

// Ranks of one machine whose memory others cannot open, or that cannot open that of others, are
// hosts of their own, as in containers.
TEST(FindHosts, SeparatesRanksThatCannotOpenEachOthersMemory) {
  LocalGroups groups(5);
  AlteredGroup elsewhere(groups[0], [](const std::string& key, const std::string& bytes) {
    return key == "hosts/probe" ? absl::StrReplaceAll(bytes, {{boot_id(), "another"}}) : bytes;
  });
  AlteredGroup blind(groups[3], [](const std::string& key, const std::string& bytes) {
    return key == "hosts/opened" ? std::string(bytes.size(), '-') : bytes;
  });
  AlteredGroup without_memory(groups[4], [](const std::string& key, const std::string& bytes) {
    return key == "hosts/probe" ? "" : bytes;
  });
  EXPECT_THAT(hosts_of({&elsewhere, &groups[1], &groups[2], &blind, &without_memory}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3), ElementsAre(4)));
}

// Returns the names of the engines that the members choose.
std::vector<std::string> chosen_by(const std::vector<Group*>& groups) {
  const int size = static_cast<int>(groups.size());
  std::vector<std::string> names(size);
  on_members(size, [&](int rank) {
    names[rank] = value_or_throw(choose_engine(*groups[rank], CommunicationImplementation::kAuto,
                                               after(seconds(30))))
                      .engine->name();
  });
  return names;
}

TEST(ChooseEngine, FollowsTheHosts) {
  LocalGroups one(2), two(2, false, {"a", "b"}), three(3, false, {"a", "b", "a"}), alone(1);
  EXPECT_THAT(chosen_by({&one[0], &one[1]}), ElementsAre("shm", "shm"));
  EXPECT_THAT(chosen_by({&two[0], &two[1]}), ElementsAre("ring", "ring"));
  EXPECT_THAT(chosen_by({&three[0], &three[1], &three[2]}),
              ElementsAre("hierarchy", "hierarchy", "hierarchy"));
  EXPECT_THAT(chosen_by({&alone[0]}), ElementsAre("shm"));
}

// Ranks that set up different engines would wait for each other until the deadline.
TEST(ChooseEngine, RanksThatAskForDifferentImplementationsAreNamedOnAllRanks) {
  const std::vector<CommunicationImplementation> asked = {CommunicationImplementation::kRing,
                                                          CommunicationImplementation::kRing,
                                                          CommunicationImplementation::kGloo};
  LocalGroups groups(3);
  on_members(3, [&](int rank) {
    const absl::Status status =
        choose_engine(groups[rank], asked[rank], after(seconds(30))).status();
    EXPECT_EQ(error_code(status), ErrorCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 0 (/job:worker/task:0) uses RING, but "
                          "rank 2 (/job:worker/task:2) uses GLOO"));
  });
}

// A rank has no memory for the slots. All ranks must take the ring, also those of other hosts.
TEST(ChooseEngine, TakesTheRingIfAHostHasTooLittleMemory) {
  LocalGroups groups(4, false, {"a", "a", "b", "b"});
  AlteredGroup altered(groups[3], [](const std::string& key, const std::string& bytes) {
    return key.ends_with("/shm/opened") ? "no memory is left" : bytes;
  });
  EXPECT_THAT(chosen_by({&groups[0], &groups[1], &groups[2], &altered}),
              ElementsAre("ring", "ring", "ring", "ring"));
}

}  // namespace
}  // namespace trireme::internal
