#include "trireme/testing/accelerator/device_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "trireme/base/sanitizer.h"
#include "trireme/testing/accelerator/stand_in_fixture.h"
#include "trireme/testing/libtorch_error.h"
#include "trireme/testing/slowdown.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using torch::Tensor;

class StandInStream : public StandInAccelerator {
 protected:
  const c10::impl::VirtualGuardImpl guard_{c10::kPrivateUse1};
};

// Returns the factor for limits of time on this machine.
double patience() {
  static const double factor = kSanitized ? 5 : slowdown();
  return factor;
}

TEST_F(StandInStream, LetsTheHostRunAheadOfTheDevice) {
  constexpr int kKernels = 100;
  const Tensor sum = torch::zeros({4}, gpu(0));
  const auto queue = [&] {
    for (int i = 0; i < kKernels; ++i) sum.add_(1);
  };
  internal::synchronize_device(0);
  set_stand_in_kernel_delay(milliseconds(1));
  const StandInCounters before = stand_in_counters(0);
  double queued = 1e9;
  const double all = shortest([&] {
    return milliseconds_of([&] {
      queued = std::min(queued, milliseconds_of(queue));
      internal::synchronize_device(0);
    });
  });
  const StandInCounters after = stand_in_counters(0);
  const double busy = std::chrono::duration<double, std::milli>(after.busy - before.busy).count();
  EXPECT_EQ(after.kernels - before.kernels, 3 * kKernels);
  EXPECT_EQ(after.host_synchronizations - before.host_synchronizations, 3);
  EXPECT_GE(busy, 3 * kKernels);
  EXPECT_GE(all, kKernels);
  EXPECT_LE(queued, 20 * patience());
  EXPECT_LE(all, 1.1 * kKernels * patience());
  EXPECT_TRUE(sum.cpu().equal(torch::full({4}, 3.0F * kKernels)));
}

TEST_F(StandInStream, RunsTwoDevicesAtTheSameTime) {
  constexpr int kKernels = 50;
  const Tensor sums[] = {torch::zeros({4}, gpu(0)), torch::zeros({4}, gpu(1))};
  for (int device : {0, 1}) internal::synchronize_device(device);
  set_stand_in_kernel_delay(milliseconds(1));
  const double both = shortest([&] {
    return milliseconds_of([&] {
      for (int i = 0; i < kKernels; ++i) {
        for (const Tensor& sum : sums) sum.add_(1);
      }
      for (int device : {0, 1}) internal::synchronize_device(device);
    });
  });
  EXPECT_GE(both, kKernels);
  EXPECT_LE(both, 1.2 * kKernels * patience());
}

TEST_F(StandInStream, OrdersStreamsByEvents) {
  const c10::Stream first = guard_.getDefaultStream(gpu(0));
  const c10::Stream second = guard_.getNewStream(gpu(0));
  const Tensor written = torch::zeros({4}, gpu(0));
  Tensor read = torch::zeros({4}, gpu(0));
  internal::synchronize_device(0);
  set_stand_in_kernel_delay(milliseconds(100));
  c10::Event event(c10::kPrivateUse1);
  EXPECT_TRUE(event.query());
  EXPECT_TRUE(guard_.queryStream(second));
  EXPECT_EQ(synchronizations_of([&] {
              written.fill_(3);
              written.fill_(1);
              event.record(first);
              EXPECT_FALSE(event.query());
              const c10::StreamGuard on_second(second);
              event.block(second);
              read.copy_(written);
            }),
            0);
  EXPECT_FALSE(guard_.queryStream(second));
  event.synchronize();
  EXPECT_TRUE(event.query());
  guard_.synchronizeStream(second);
  EXPECT_TRUE(guard_.queryStream(second));
  EXPECT_TRUE(read.cpu().equal(torch::ones({4})));
}

TEST_F(StandInStream, RunsStreamsOfADeviceAtTheSameTime) {
  const c10::Stream streams[] = {guard_.getNewStream(gpu(1)), guard_.getNewStream(gpu(1))};
  ASSERT_NE(streams[0], streams[1]);
  const Tensor tensors[] = {torch::zeros({4}, gpu(1)), torch::zeros({4}, gpu(1))};
  internal::synchronize_device(1);
  c10::Event started(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event ended(c10::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  set_stand_in_kernel_delay(milliseconds(100));
  started.record(streams[0]);
  const double both = milliseconds_of([&] {
    for (int i : {0, 1}) {
      const c10::StreamGuard on(streams[i]);
      tensors[i].fill_(1);
    }
    ended.record(streams[0]);
    internal::synchronize_device(1);
  });
  EXPECT_LE(both, 100 + 75 * patience());
  EXPECT_GE(started.elapsedTime(ended), 100);
  EXPECT_LE(started.elapsedTime(ended), both + 1);
}

TEST_F(StandInStream, RunsKernelsOnOneThread) {
  const int before = at::get_num_threads();
  int in_kernel = 0;
  internal::current_stream(0).enqueue([&] { in_kernel = at::get_num_threads(); }, {});
  internal::synchronize_device(0);
  EXPECT_EQ(in_kernel, 1);
  int in_new_thread = 0;
  std::thread([&] { in_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(in_new_thread, before);
  EXPECT_EQ(at::get_num_threads(), before);
}

TEST_F(StandInStream, ThrowsTheErrorOfAKernelAtTheNextSynchronization) {
  const Tensor index = torch::full({1}, 7, torch::TensorOptions(gpu(0)).dtype(torch::kLong));
  const Tensor rows = torch::zeros({4, 2}, gpu(0)).index_select(0, index);
  const std::string error = libtorch_error([] { internal::synchronize_device(0); });
  EXPECT_NE(error.find("index out of range"), std::string::npos) << error;
  EXPECT_EQ(libtorch_error([] { internal::synchronize_device(0); }), "no error");
}

}  // namespace
}  // namespace trireme
