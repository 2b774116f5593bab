#include "trireme/runtime/session_requests.h"

#include <gtest/gtest.h>

#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

class OpenRequestsTest : public testing::Test {
 protected:
  OpenSessionRequest make() {
    return value_or_throw(parse_body<OpenSessionRequest>(requests_.make()));
  }
  void answer(uint64_t generation, int64_t clock_ms = 1) {
    OpenSessionResponse response;
    response.set_generation(generation);
    response.set_clock_ms(clock_ms);
    throw_if_error(requests_.note_answer(make_message(response)));
  }

  OpenRequests requests_{5, {.job = "ads", .container = "default"}};
};

// A renewal may have begun a generation, because the lease of the job had run out.
TEST_F(OpenRequestsTest, NameTheHighestGenerationOfAllAnswers) {
  EXPECT_EQ(make().generation(), 0u);
  EXPECT_FALSE(make().resume());
  answer(1);
  EXPECT_EQ(make().generation(), 1u);
  EXPECT_TRUE(make().resume());
  answer(3);
  answer(2);  // an answer that was overtaken
  EXPECT_EQ(make().generation(), 3u);
  const absl::Status lost = make_status(ErrorCode::kTaskUnreachable, "it is silent");
  EXPECT_EQ(requests_.note_answer(lost), lost);
  EXPECT_EQ(make().generation(), 3u);
}

TEST_F(OpenRequestsTest, SayWhenTheyAreSentOnTheClockOfTheMaster) {
  EXPECT_EQ(make().sent_ms(), 0);
  constexpr int64_t kMasterClock = 1'000'000;
  const Time start = Clock::real().now();
  answer(1, kMasterClock);
  const int64_t sent = make().sent_ms();
  const Duration passed = Clock::real().now() - start;
  EXPECT_GE(sent, kMasterClock - 1);
  EXPECT_LE(Duration(std::chrono::milliseconds(sent - kMasterClock)), passed);
  requests_.forget_clock();
  EXPECT_EQ(make().sent_ms(), 0);
}

}  // namespace
}  // namespace trireme::internal
