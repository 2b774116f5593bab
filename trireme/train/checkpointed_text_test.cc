// Tests of texts in checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/error_of.h"
#include "trireme/train/checkpoint_manager.h"

namespace trireme {
namespace {

using testing::HasSubstr;

// A text whose state is a string of the test.
CheckpointedText text_of(const std::string& name, std::string& state) {
  return {name, [&state] { return state; }, [&state](const std::string& text) { state = text; }};
}

TEST(CheckpointedText, IsSavedAtTheCutAndRestored) {
  const TemporaryFolder folder;
  std::string fit = "{\"näme\":\"\\\"\"}\n", other;
  const Variable weight("weight", torch::zeros({2}));
  CheckpointManager manager(folder.path(), {weight, text_of("fit", fit), text_of("other", other)});
  manager.save(3);
  fit = "changed after the cut";
  manager.wait();
  std::string seen;
  float weight_seen = 1;
  weight.assign(torch::ones({2}));
  CheckpointedText text = text_of("fit", seen);
  text.restore = [&, set = text.restore](const std::string& value) {
    set(value);
    weight_seen = weight.read().sum().item<float>();  // the other objects are restored before
  };
  std::string other_seen = "x";
  CheckpointManager second(folder.path(), {text_of("other", other_seen), text, weight});
  EXPECT_EQ(second.restore_or_initialize(), 3);
  EXPECT_EQ(seen, "{\"näme\":\"\\\"\"}\n");
  EXPECT_EQ(other_seen, "");
  EXPECT_EQ(weight_seen, 0);
}

TEST(CheckpointedText, AloneIsACheckpoint) {
  const TemporaryFolder folder;
  std::string state = "one";
  CheckpointManager manager(folder.path(), {text_of("state", state)});
  manager.save(1);
  manager.wait();
  state = "two";
  EXPECT_EQ(manager.restore_or_initialize(), 1);
  EXPECT_EQ(state, "one");
}

TEST(CheckpointedText, DifferencesAreListedAndPatternsLeaveTextsAlone) {
  const TemporaryFolder folder;
  const Variable weight("weight", torch::zeros({}));
  std::string gone = "a", kept = "b", added = "c";
  {
    CheckpointManager manager(folder.path(),
                              {weight, text_of("gone", gone), text_of("kept", kept)});
    manager.save(1);
  }
  kept = "unchanged";
  CheckpointManager manager(folder.path(),
                            {weight, text_of("kept", kept), text_of("added", added)});
  const Error error = error_of([&] { manager.restore_or_initialize(); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("\n  text 'added' is not in the checkpoint\n"));
  EXPECT_THAT(error.what(),
              HasSubstr("\n  text 'gone' of the checkpoint is not among the objects\n"));
  manager.restore(*manager.latest(), {.patterns = {"weight"}});
  EXPECT_EQ(kept, "unchanged");
  manager.restore(*manager.latest(), {.partial = true});
  EXPECT_EQ(kept, "b");
  EXPECT_EQ(added, "c");
}

TEST(CheckpointedText, TheErrorOfTheProgramsFunctionIsThrown) {
  const TemporaryFolder folder;
  const CheckpointedText broken = {
      "broken", [] { return std::string("x"); },
      [](const std::string&) { throw Error(ErrorCode::kOutOfRange, "cannot continue"); }};
  CheckpointManager manager(folder.path(), {broken});
  manager.save(1);
  manager.wait();
  EXPECT_THAT(error_text([&] { manager.restore_or_initialize(); }), HasSubstr("cannot continue"));
}

TEST(CheckpointedText, RejectsTextsThatAManifestCannotHave) {
  const TemporaryFolder folder;
  std::string state;
  const auto make = [&](const std::vector<Checkpointed>& objects) {
    return error_text([&] { CheckpointManager(folder.path(), objects); });
  };
  EXPECT_THAT(make({text_of("", state)}), HasSubstr("'' is not a valid name of a text"));
  EXPECT_THAT(make({text_of("a", state), text_of("a", state)}),
              HasSubstr("text 'a' is given twice"));
  EXPECT_THAT(make({CheckpointedText{"a", nullptr, nullptr}}), HasSubstr("`save` and `restore`"));

  CheckpointManager manager(folder.path(), {text_of("state", state)});
  state = "\xff";
  EXPECT_THAT(error_text([&] { manager.save(1); }), HasSubstr("text 'state' is not UTF-8"));
  state.assign((16 << 20) + 1, 'a');
  EXPECT_THAT(error_text([&] { manager.save(1); }),
              HasSubstr("16777217 bytes long, and a checkpoint has room for 16777216"));
  EXPECT_TRUE(manager.checkpoints().empty());
  state.pop_back();
  manager.save(1);
  manager.wait();
  EXPECT_EQ(manager.restore_or_initialize(), 1);
}

}  // namespace
}  // namespace trireme
