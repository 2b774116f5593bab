#include "trireme/ps/fence.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <future>

#include "trireme/base/status.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;

TEST(Fence, RejectsPushesBelowIt) {
  VariableStore store;
  value_or_throw(store.create("job", "w", at::zeros({2})));
  Writers writers;
  throw_if_error(writers.begin(7));
  fence_writer(writers, store, 7, 10);
  EXPECT_TRUE(absl::IsAborted(writers.admit({7, 9, 0}, 0).status()));
  EXPECT_TRUE(writers.admit({7, 10, 0}, 0).ok());
  fence_writer(writers, store, 8, 10);  // a writer that is not registered is fenced anyway
}

// A push that was classified before the fence was raised changes the variable under its lock.
TEST(Fence, WaitsForUpdatesThatAreBeingApplied) {
  VariableStore store;
  const auto variable = value_or_throw(store.create("job", "w", at::zeros({2})));
  value_or_throw(store.create("job", "other", at::zeros({2})));
  Writers writers;
  throw_if_error(writers.begin(7));
  const auto writer = value_or_throw(writers.admit({7, 1, 0}, 0));
  std::future<void> fence;
  {
    const WriterLock applying(variable->mutex);
    fence = std::async(std::launch::async, [&] { fence_writer(writers, store, 7, 10); });
    EXPECT_TRUE(wait_until([&] { return writer->watermark() == 10; }, seconds(20)));
    EXPECT_EQ(fence.wait_for(seconds(0)), std::future_status::timeout);
  }
  ASSERT_EQ(fence.wait_for(seconds(20)), std::future_status::ready);
}

TEST(Fence, DoesNotCountAsAChange) {
  VariableStore store;
  const auto variable = value_or_throw(store.create("job", "w", at::zeros({2})));
  const auto version = [&] {
    const ReaderLock lock(variable->mutex);
    return variable->version();
  };
  const uint64_t before = version();
  wait_for_updates(store);
  EXPECT_EQ(version(), before);
}

}  // namespace
}  // namespace trireme::internal
