#include "trireme/exec/branches.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace trireme::internal {
namespace {

// Threads that start later begin with the number that at::set_num_threads() was given last.
TEST(RunBranches, SetsTheNumberOfThreadsOfItsHelpersAlone) {
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  BranchSchedule schedule;
  schedule.lanes = {{{0, {}, {}, {}}}, {{1, {}, {}, {}}}};
  int of_lane[2] = {0, 0}, of_new_thread = 0;
  std::string helper;
  const auto run_step = [&](int lane, const BranchStep&) {
    of_lane[lane] = at::get_num_threads();
    if (lane == 1) helper = at::get_parallel_info();
    return absl::OkStatus();
  };
  absl::Status status;
  ASSERT_TRUE(run_branches(schedule, run_step, &status, /*helper_threads=*/2));
  std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(at::get_num_threads(), 4);
  at::set_num_threads(before);
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(of_lane[0], 4);
  EXPECT_EQ(of_lane[1], 2);
  EXPECT_EQ(of_new_thread, 4);
  // MKL has a number of its own.
  if (helper.find("mkl_get_max_threads") != std::string::npos) {
    EXPECT_THAT(helper, testing::HasSubstr("mkl_get_max_threads() : 2\n"));
  }
}

}  // namespace
}  // namespace trireme::internal
