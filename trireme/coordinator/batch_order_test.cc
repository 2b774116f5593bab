#include "trireme/coordinator/batch_order.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

namespace trireme::internal {
namespace {

class BatchOrderTest : public testing::Test {
 protected:
  // Receives a batch, as a worker does.
  void receive(uint64_t batch, uint64_t after) {
    const auto enter = [this, batch] {
      entered_.push_back(batch);
      order_->note_entered(batch);
    };
    if (order_->may_enter(batch, after, enter)) enter();
  }

  const std::shared_ptr<BatchOrder> order_ = std::make_shared<BatchOrder>();
  std::vector<uint64_t> entered_;
};

TEST_F(BatchOrderTest, EntersInTheOrderOfSending) {
  receive(1, 0);
  receive(3, 2);
  receive(4, 3);
  EXPECT_EQ(entered_, std::vector<uint64_t>({1}));
  receive(2, 1);
  EXPECT_EQ(entered_, std::vector<uint64_t>({1, 2, 3, 4}));
}

TEST_F(BatchOrderTest, DoesNotWaitForABatchThatWasAnswered) {
  receive(7, 0);
  receive(9, 0);
  receive(8, 7);  // of a connection before
  EXPECT_EQ(entered_, std::vector<uint64_t>({7, 9, 8}));
}

TEST_F(BatchOrderTest, GivesUpOnABatchThatDoesNotArrive) {
  std::promise<void> entered;
  EXPECT_FALSE(order_->may_enter(2, 1, [&] { entered.set_value(); }));
  EXPECT_EQ(entered.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace trireme::internal
