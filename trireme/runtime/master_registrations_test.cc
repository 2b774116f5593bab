#include "trireme/runtime/master_registrations.h"

#include <gtest/gtest.h>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

// A task that records which parts it was asked to drop, and does nothing else.
class DroppingTask final : public TaskStub {
 public:
  uint64_t incarnation() const override { return 1; }
  void register_part(const Worker::NewPart&, Time, OnStatus done) override {
    done(absl::OkStatus());
  }
  void drop_part(uint64_t registration) override { dropped.push_back(registration); }
  void run_part(const StepKey&, uint64_t, const GraphPart&, PartInputs,
                OnPartResult done) override {
    done(make_status(ErrorCode::kUnimplemented, "it runs nothing"));
  }
  void abort_step(const StepKey&, const std::string&) override {}
  void check_health(Time, OnStatus done) override { done(absl::OkStatus()); }
  absl::StatusOr<std::vector<bool>> find_variables(const VariableScope&,
                                                   const std::vector<std::string>&, Time) override {
    return std::vector<bool>();
  }
  void make_variables(NewVariables, Time, OnStatus done) override { done(absl::OkStatus()); }
  void renew_session(uint64_t, Duration) override {}
  void end_session(uint64_t, Time) override {}

  std::vector<uint64_t> dropped;
};

class MasterRegistrationsTest : public testing::Test {
 protected:
  std::shared_ptr<const MasterGraph::Registered> add(uint64_t session, uint64_t id) {
    auto registered = std::make_shared<MasterGraph::Registered>();
    registered->id = id;
    registered->tasks = {first_, second_};
    registrations_.add(session, registered);
    return registered;
  }

  const std::shared_ptr<DroppingTask> first_ = std::make_shared<DroppingTask>();
  const std::shared_ptr<DroppingTask> second_ = std::make_shared<DroppingTask>();
  MasterRegistrations registrations_;
};

TEST_F(MasterRegistrationsTest, ReleasesThePartsOfALostRegistrationOnAllTasks) {
  MasterGraph graph(1, {}, {}, {});
  graph.set_registered(add(1, 10));
  registrations_.release_unused();
  EXPECT_TRUE(first_->dropped.empty());
  // A step has found a task lost, and another step is still in flight.
  auto held_by_step = graph.registered();
  graph.invalidate(*held_by_step);
  graph.set_registered(add(1, 11));
  registrations_.release_unused();
  EXPECT_TRUE(first_->dropped.empty()) << "the other step may still succeed";
  held_by_step.reset();
  registrations_.release_unused();
  EXPECT_EQ(first_->dropped, std::vector<uint64_t>{10});
  EXPECT_EQ(second_->dropped, std::vector<uint64_t>{10});
  registrations_.release_unused();
  EXPECT_EQ(first_->dropped.size(), 1u) << "each part is dropped once";
}

TEST_F(MasterRegistrationsTest, ReleasesThePartsOfARegistrationThatFailed) {
  add(1, 10);
  registrations_.release_unused();
  EXPECT_EQ(first_->dropped, std::vector<uint64_t>{10});
}

TEST_F(MasterRegistrationsTest, LeavesTheEndOfASessionToItsTasks) {
  add(1, 10);
  add(2, 11);
  registrations_.forget_session(1);
  registrations_.release_unused();
  EXPECT_EQ(first_->dropped, std::vector<uint64_t>{11});
}

}  // namespace
}  // namespace trireme::internal
