#include "trireme/collective/shm_pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace trireme::internal {
namespace {

constexpr int64_t kPoolMiB = 1 << 20;

struct PoolUnderTest {
  std::vector<std::string> handles;  // by region
  std::shared_ptr<ShmPool> pool =
      std::make_shared<ShmPool>([this](int region, const std::string& handle) {
        EXPECT_EQ(region, static_cast<int>(handles.size()));
        handles.push_back(handle);
      });
};

TEST(ShmPool, TensorsAreAlignedAndDoNotOverlap) {
  PoolUnderTest subject;
  std::vector<at::Tensor> tensors;
  for (const int64_t bytes : {0, 1, 63, 64, 65, 100'000}) {
    tensors.push_back(subject.pool->allocate(bytes));
    ASSERT_EQ(tensors.back().sizes(), at::IntArrayRef{bytes});
    EXPECT_EQ(tensors.back().scalar_type(), at::kByte);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().data_ptr()) % 64, 0u);
    tensors.back().fill_(static_cast<int>(tensors.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(tensors[i].eq(static_cast<int>(i + 1)).all().item<bool>()) << i;
  }
  EXPECT_EQ(subject.handles.size(), 1u);
}

TEST(ShmPool, FreedNeighboursBecomeOneRange) {
  PoolUnderTest subject;
  const at::Tensor first = subject.pool->allocate(20 * kPoolMiB);
  at::Tensor second = subject.pool->allocate(10 * kPoolMiB);
  at::Tensor third = subject.pool->allocate(10 * kPoolMiB);
  at::Tensor fourth = subject.pool->allocate(10 * kPoolMiB);
  const at::Tensor last = subject.pool->allocate(14 * kPoolMiB);
  void* const start = second.data_ptr();
  second.reset();
  fourth.reset();
  third.reset();  // It has free neighbours on both sides.
  const at::Tensor large = subject.pool->allocate(30 * kPoolMiB);
  EXPECT_EQ(large.data_ptr(), start);
  EXPECT_EQ(subject.handles.size(), 1u);
}

TEST(ShmPool, GrowsBySegmentsThatOthersCanOpen) {
  PoolUnderTest subject;
  const at::Tensor small = subject.pool->allocate(100);
  const at::Tensor large = subject.pool->allocate(65 * kPoolMiB);
  ASSERT_EQ(subject.handles.size(), 2u);
  large.fill_(7);
  const ShmPlace place = subject.pool->find(large.data_ptr(), large.nbytes());
  EXPECT_EQ(place.region, 1);
  const auto opened = SharedSegment::open(subject.handles[1]);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->data()[place.offset + 65 * kPoolMiB - 1], std::byte{7});
}

TEST(ShmPool, FindsOnlyMemoryThatLiesInItsSegments) {
  PoolUnderTest subject;
  const at::Tensor skipped = subject.pool->allocate(640);
  const at::Tensor tensor = subject.pool->allocate(1000);
  EXPECT_EQ(subject.pool->find(tensor.data_ptr(), 1000).region, 0);
  EXPECT_EQ(subject.pool->find(tensor.data_ptr(), 1000).offset, 640u);
  EXPECT_EQ(subject.pool->find(tensor.narrow(0, 10, 5).data_ptr(), 5).offset, 650u);
  EXPECT_EQ(subject.pool->find(tensor.data_ptr(), 65 * kPoolMiB).region, -1);
  EXPECT_EQ(subject.pool->find(at::zeros({10}).data_ptr(), 10).region, -1);
  EXPECT_EQ(subject.pool->find(nullptr, 10).region, -1);
}

TEST(ShmPool, ReturnsAnUndefinedTensorWithoutMemory) {
  PoolUnderTest subject;
  EXPECT_FALSE(subject.pool->allocate(int64_t{1} << 45).defined());
  EXPECT_FALSE(subject.pool->allocate(std::numeric_limits<int64_t>::max()).defined());
  EXPECT_FALSE(subject.pool->allocate(-1).defined());
  EXPECT_TRUE(subject.pool->allocate(10).defined());
}

TEST(ShmPool, TensorsOutliveThePool) {
  PoolUnderTest subject;
  const at::Tensor tensor = subject.pool->allocate(1000);
  subject.pool.reset();
  tensor.fill_(3);
  EXPECT_EQ(tensor.sum().item<int64_t>(), 3000);
}

TEST(ShmPool, ThreadsAllocateAndFree) {
  PoolUnderTest subject;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int round = 0; round < 300; ++round) {
          const at::Tensor tensor = subject.pool->allocate(1 + round * 7);
          tensor.fill_(thread);
          ASSERT_TRUE(tensor.eq(thread).all().item<bool>());
        }
      });
    }
  }
  // Everything is free again.
  EXPECT_TRUE(subject.pool->allocate(64 * kPoolMiB).defined());
  EXPECT_EQ(subject.handles.size(), 1u);
}

}  // namespace
}  // namespace trireme::internal
