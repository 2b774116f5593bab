#include "trireme/collective/parcel_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/collective/forwarding_group.h"
#include "trireme/collective/local_group.h"

namespace trireme::internal {
namespace {

// A member whose parcels are under way until the test takes them.
class SlowGroup final : public ForwardingGroup {
 public:
  using ForwardingGroup::ForwardingGroup;

  void send(int, Parcel parcel, std::function<void(const absl::Status&)> done) override {
    slots.push_back(static_cast<int>(parcel.slot));
    under_way.push_back(std::move(done));
    if (on_send) on_send(parcel.slot);
  }
  void take_first() {
    const auto done = std::move(under_way.front());
    under_way.pop_front();
    done(absl::OkStatus());
  }
  void take_all() {
    while (!under_way.empty()) take_first();
  }

  std::vector<int> slots;  // slots of the parcels that were sent
  std::deque<std::function<void(const absl::Status&)>> under_way;
  std::function<void(uint32_t slot)> on_send;
};

// All parcels are taken while the queue is empty, but the sender has not seen the end of any of
// their callbacks yet. A parcel that is added at this moment must be sent by one of them.
TEST(ParcelSender, AParcelThatIsAddedWhileTheLastOnesAreTakenIsSent) {
  constexpr uint32_t kLast = 8;
  LocalGroups groups(2);
  SlowGroup group(groups[0]);
  ParcelSender sender(group);
  const auto enqueue = [&](uint32_t slot) {
    sender.enqueue(1, {.sequence = 1, .slot = slot}, /*urgent=*/false);
  };
  for (uint32_t slot = 0; slot < kLast; ++slot) enqueue(slot);
  group.on_send = [&](uint32_t slot) {
    group.take_all();
    if (slot == kLast - 1) enqueue(kLast);
  };
  group.take_first();
  EXPECT_THAT(group.slots, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  const absl::Status status = sender.flush(Clock::real().now());
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ParcelSender, ParcelsOvertakeOthersOnlyIfTheyAreUrgent) {
  LocalGroups groups(2);
  SlowGroup group(groups[0]);
  ParcelSender sender(group);
  for (uint32_t slot = 0; slot < 8; ++slot) {
    sender.enqueue(1, {.sequence = 1, .slot = slot}, /*urgent=*/slot == 7);
  }
  EXPECT_THAT(group.slots, testing::ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(error_code(sender.flush(Clock::real().now())), ErrorCode::kDeadlineExceeded);
  group.take_all();
  EXPECT_THAT(group.slots, testing::ElementsAre(0, 1, 2, 3, 7, 4, 5, 6));
  EXPECT_TRUE(sender.flush(Clock::real().now()).ok());
  EXPECT_TRUE(sender.was_taken_by(1, 1));
}

}  // namespace
}  // namespace trireme::internal
