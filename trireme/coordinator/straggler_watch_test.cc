#include "trireme/coordinator/straggler_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(StragglerWatch, MarksAWorkerThatIsMuchSlowerThanTheOthersUntilItRecovers) {
  StragglerWatch watch;
  for (int worker = 0; worker < 4; ++worker)
    watch.note(worker, 1, "step", {milliseconds(50), milliseconds(50)});
  EXPECT_EQ(watch.median_of_others(3, 1).busy, milliseconds(50));
  for (int i = 0; i < 2; ++i) watch.note(3, 1, "step", {seconds(1), seconds(1)});
  EXPECT_FALSE(watch.is_slow(3)) << "twice may be chance";
  watch.note(3, 1, "step", {seconds(1), seconds(1)});
  EXPECT_TRUE(watch.is_slow(3));
  for (int worker = 0; worker < 3; ++worker) EXPECT_FALSE(watch.is_slow(worker));
  for (int i = 0; i < 3; ++i) watch.note(3, 1, "step", {milliseconds(60), milliseconds(60)});
  EXPECT_FALSE(watch.is_slow(3));
}

TEST(StragglerWatch, IgnoresShortTimesAndDifferentFunctions) {
  StragglerWatch watch;
  for (int i = 0; i < 5; ++i) {
    watch.note(0, 1, "quick", {milliseconds(1), milliseconds(1)});
    watch.note(1, 1, "quick", {milliseconds(10), milliseconds(10)});
    watch.note(0, 2, "long", {seconds(1), seconds(1)});
    watch.note(1, 3, "longer", {seconds(9), seconds(9)});
  }
  EXPECT_FALSE(watch.is_slow(0));
  EXPECT_FALSE(watch.is_slow(1));
}

TEST(StragglerWatch, MarksAWorkerThatDoesNotAnswer) {
  StragglerWatch watch;
  watch.note_waiting(1, "step", seconds(100), {});
  EXPECT_FALSE(watch.is_slow(1)) << "no other worker has run the function";
  watch.note_waiting(1, "step", seconds(1), milliseconds(100));
  EXPECT_FALSE(watch.is_slow(1));
  watch.note_waiting(1, "step", seconds(2), milliseconds(100));
  EXPECT_TRUE(watch.is_slow(1));
  watch.forget(1);
  EXPECT_FALSE(watch.is_slow(1));
}

TEST(StragglerWatch, ComparesASilentWorkerWithTheTimeForAllItsClosures) {
  const auto function = std::make_shared<ClosureFunction>();
  function->id = 1;
  function->name = "step";
  std::vector<ClosurePtr> closures;
  for (uint32_t repeat : {1, 3}) {
    closures.push_back(std::make_shared<Closure>());
    closures.back()->function = function;
    closures.back()->repeat = repeat;
  }
  StragglerWatch watch;
  watch.note_silence(1, closures, seconds(100));
  EXPECT_FALSE(watch.is_slow(1)) << "no other worker has run the function";
  watch.note_batch(0, closures, {seconds(1), seconds(1)});
  watch.note_silence(1, closures, seconds(16));
  EXPECT_FALSE(watch.is_slow(1)) << "the others take four seconds for four runs";
  watch.note_silence(1, closures, seconds(18));
  EXPECT_TRUE(watch.is_slow(1));
}

}  // namespace
}  // namespace trireme::internal
