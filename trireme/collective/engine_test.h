#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/collective/engine.h"
#include "trireme/collective/group.h"

// The tests that every CollectiveEngine must pass are in engine_test.cc. The test of an engine runs
// them with
//
//   INSTANTIATE_TEST_SUITE_P(Ring, EngineTest, testing::Values(EngineUnderTest{make_ring_engine}));
namespace trireme::internal {

using EngineFactory =
    std::function<absl::StatusOr<std::unique_ptr<CollectiveEngine>>(Group& group, Time deadline)>;
using GroupFactory = std::function<std::vector<std::shared_ptr<Group>>(int size)>;

// Returns groups whose members are threads of this process (local_group.h).
std::vector<std::shared_ptr<Group>> make_local_groups(int size);
// Returns groups whose members receive payloads in pieces that end within elements.
std::vector<std::shared_ptr<Group>> make_scattering_groups(int size);

struct EngineUnderTest {
  EngineFactory make_engine;
  GroupFactory make_groups = make_local_groups;
  int most_ranks =
      5;  // largest group; smaller for an engine that is slow with more ranks than cores
};

// The engines of all ranks of a group. Each rank is used by one thread at a time.
class EngineRanks {
 public:
  EngineRanks(const EngineUnderTest& subject, int size);
  // Destroys the engines, each on a thread of its own, since they may wait for each other.
  ~EngineRanks();

  int size() const { return static_cast<int>(groups_.size()); }
  Group& group(int rank) { return *groups_[rank]; }

  // Calls `body` for each rank on a thread of its own, and blocks until all have returned.
  void on_all(const std::function<void(int rank)>& body);
  // Destroys the engine of a rank.
  void end(int rank) { engines_[rank].reset(); }
  // Makes the next call of a rank, and fails the group on an error, as Communicator does.
  absl::Status run(int rank, CollectiveCall call, Duration timeout = std::chrono::seconds(30));

 private:
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<std::unique_ptr<CollectiveEngine>> engines_;
  std::vector<uint64_t> calls_;  // number of calls that each rank has made
};

class EngineTest : public testing::TestWithParam<EngineUnderTest> {};

}  // namespace trireme::internal
