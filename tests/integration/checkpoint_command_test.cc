// `trireme checkpoint` reads checkpoints as a person does who has no cluster: it lists, checks,
// shows, compares and converts them, and its exit code tells scripts what it found.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/progress_bar.h"
#include "tests/integration/commands.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/manual_clock.h"
#include "trireme/testing/read_back.h"

namespace trireme {
namespace {

using internal::CheckpointDirectory;
using internal::Manifest;
using internal::SavedShard;
using internal::SavedVariable;
using internal::TensorToSave;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TensorToSave to_save(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.scalar_type(), tensor.sizes().vec(), tensor.const_data_ptr(),
          tensor.nbytes()};
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class CheckpointCommandTest : public testing::Test {
 protected:
  // Writes a checkpoint of a table of 3 rows in two shards with Adagrad's slot, and of a counter.
  void save(uint64_t step, float first_value = 0) {
    const at::Tensor table = at::arange(first_value, first_value + 12, at::kFloat).view({3, 4});
    const at::Tensor sums = at::full({3, 4}, 0.5, at::kFloat);
    const at::Tensor count = at::full({}, static_cast<int64_t>(step), at::kLong);
    CheckpointDirectory directory(Files::local(), path());
    const std::string path = value_or_throw(directory.begin(step));
    Manifest manifest{.step = step,
                      .id = "test",
                      .saved_at = "2026-11-17T12:00:00Z",
                      .metric = 0.25,
                      .functions = {{"train_step", step}},
                      .iterators = {{"batches", true, "rows(100)", {{1, 10, {7}}, {2, 8, {}}}}},
                      .texts = {{"fit", std::string(step, 'x')}}};
    SavedVariable saved{.name = "table",
                        .dtype = at::kFloat,
                        .sizes = {3, 4},
                        .trainable = true,
                        .rule = "adagrad",
                        .options = {{"lr", 0.5}},
                        .slots = {"sum"}};
    const int64_t rows[] = {0, 2, 3};
    for (int i = 0; i < 2; ++i) {
      const std::string name = absl::StrCat("table/part_", i);
      const int64_t count = rows[i + 1] - rows[i];
      const auto written = value_or_throw(internal::write_tensor_file(
          Files::local(), join_path(path, absl::StrCat("ps-", i, "-of-2.safetensors")),
          {to_save(name, table.narrow(0, rows[i], count)),
           to_save(name + "#sum", sums.narrow(0, rows[i], count))}));
      SavedShard shard{rows[i], count, written.tensors[0], {written.tensors[1]}, 1.0 * step};
      shard.contents.file = shard.slots[0].file = i;
      saved.shards.push_back(shard);
      manifest.files.push_back(written.file);
    }
    const auto written = value_or_throw(internal::write_tensor_file(
        Files::local(), join_path(path, "program.safetensors"), {to_save("count", count)}));
    manifest.files.push_back(written.file);
    SavedVariable counter{.name = "count", .dtype = at::kLong};
    counter.shards = {{0, 1, written.tensors[0], {}, 0}};
    counter.shards[0].contents.file = 2;
    manifest.variables = {saved, counter};
    throw_if_error(directory.commit(path, manifest));
  }

  // Changes one byte of a file of a checkpoint. A negative offset counts from the end.
  void damage(uint64_t step, const std::string& file, int offset) {
    const std::string path = join_path(checkpoint(step), file);
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto from = offset < 0 ? std::ios::end : std::ios::beg;
    stream.seekg(offset, from);
    const char byte = static_cast<char>(stream.get() ^ 0x10);
    stream.seekp(offset, from);
    stream.put(byte);
  }

  std::string path() const { return join_path(folder_.path(), "checkpoints"); }
  std::string checkpoint(uint64_t step) const {
    return join_path(path(), internal::checkpoint_name(step));
  }
  std::string out() const { return join_path(folder_.path(), "out"); }

  TemporaryFolder folder_;
};

CompletedProcess run_checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "checkpoint");
  return run_trireme(std::move(arguments));
}

TEST_F(CheckpointCommandTest, ListsTheNewestFirst) {
  save(9);
  save(42);
  throw_if_error(Files::local().make_directory(checkpoint(50)));
  const CompletedProcess done = run_checkpoint({"ls", path()});
  EXPECT_EQ(done.status.code, 0) << done.stderr_text;
  EXPECT_THAT(done.stdout_text, testing::ContainsRegex("step-0000000042 .*\n.*step-0000000009"));
  EXPECT_THAT(done.stdout_text, HasSubstr("left by unfinished saves: step-0000000050\n"));
  const auto json = nlohmann::json::parse(run_checkpoint({"ls", path(), "--json"}).stdout_text);
  ASSERT_EQ(json["checkpoints"].size(), 2u);
  EXPECT_EQ(json["checkpoints"][0]["step"], 42);
  EXPECT_EQ(json["checkpoints"][0]["metric"], 0.25);
  EXPECT_EQ(json["checkpoints"][0]["variables"], 2);
  EXPECT_EQ(json["unfinished"][0], "step-0000000050");
}

TEST_F(CheckpointCommandTest, VerifyAcceptsAWholeCheckpoint) {
  save(42);
  for (const std::string& given : {path(), checkpoint(42)}) {
    const CompletedProcess done = run_checkpoint({"verify", given});
    EXPECT_EQ(done.status.code, 0) << done.stderr_text;
    EXPECT_THAT(done.stdout_text, HasSubstr("step-0000000042 is whole: 5 tensors, "));
    EXPECT_EQ(done.stderr_text, "");  // No progress bar where there is no terminal.
  }
}

TEST_F(CheckpointCommandTest, VerifyNamesTheFileAndTheTensorThatAreDamaged) {
  save(9);
  save(42);
  damage(42, "ps-1-of-2.safetensors", -1);
  const CompletedProcess done = run_checkpoint({"verify", path()});
  EXPECT_EQ(done.status.code, 1);
  EXPECT_THAT(done.stderr_text,
              AllOf(HasSubstr("step-0000000042 is damaged"), HasSubstr("ps-1-of-2.safetensors"),
                    HasSubstr("table/part_1")));
  EXPECT_EQ(run_checkpoint({"verify", checkpoint(9)}).status.code, 0);
  const CompletedProcess all = run_checkpoint({"verify", path(), "--all"});
  EXPECT_EQ(all.status.code, 1);
  EXPECT_THAT(all.stdout_text, AllOf(HasSubstr("step-0000000009 is whole"), Not(HasSubstr("42"))));
}

TEST_F(CheckpointCommandTest, DamageElsewhereIsFoundToo) {
  save(42);
  damage(42, "manifest.json", 200);
  EXPECT_EQ(run_checkpoint({"verify", path()}).status.code, 1);
  EXPECT_EQ(run_checkpoint({"show", path()}).status.code, 1);
  const CompletedProcess listed = run_checkpoint({"ls", path()});
  EXPECT_EQ(listed.status.code, 1);
  EXPECT_THAT(listed.stdout_text, HasSubstr("step-0000000042  damaged: "));
  save(43);
  throw_if_error(Files::local().remove(join_path(checkpoint(43), "program.safetensors")));
  const CompletedProcess missing = run_checkpoint({"verify", path()});
  EXPECT_EQ(missing.status.code, 1);
  EXPECT_THAT(missing.stderr_text, HasSubstr("program.safetensors"));
}

TEST_F(CheckpointCommandTest, ShowsTheVariables) {
  save(42);
  const CompletedProcess done = run_checkpoint({"show", path()});
  EXPECT_EQ(done.status.code, 0) << done.stderr_text;
  EXPECT_THAT(done.stdout_text,
              AllOf(HasSubstr("step 42, saved at 2026-11-17T12:00:00Z, metric 0.25"),
                    testing::ContainsRegex("table +float32 +\\[3, 4\\] +2 +48 B +adagrad lr=0.5, "
                                           "42 updates +sum\n"),
                    testing::ContainsRegex("count +int64 +\\[\\] +1 +8 B +- +-\n"),
                    HasSubstr("iterator batches: 17 elements used by 2 workers, 1 returned; "
                              "rows(100)\n"),
                    HasSubstr("text fit: 42 B\n"), HasSubstr("function train_step: 42 calls\n")));
  const auto json = nlohmann::json::parse(run_checkpoint({"show", path(), "--json"}).stdout_text);
  EXPECT_EQ(json["step"], 42);
  EXPECT_EQ(json["variables"][0]["name"], "table");
}

TEST_F(CheckpointCommandTest, DiffComparesTheTwoNewest) {
  save(41);
  save(42, /*first_value=*/1);
  const CompletedProcess done = run_checkpoint({"diff", path()});
  EXPECT_EQ(done.status.code, 1) << done.stderr_text;
  EXPECT_THAT(done.stdout_text,
              AllOf(HasSubstr("table: 12 of 12 elements differ, by at most 1\n"),
                    HasSubstr("count: 1 of 1 elements differ, by at most 1\n"),
                    HasSubstr("table#step: 41 and 42\n"), HasSubstr("step: 41 and 42\n"),
                    HasSubstr("texts: other contents\n"),
                    HasSubstr("1 tensors are equal, 6 differences\n")));
  EXPECT_EQ(run_checkpoint({"diff", checkpoint(42), path()}).status.code, 0);
}

TEST_F(CheckpointCommandTest, ConvertJoinsTheShards) {
  save(42);
  const CompletedProcess done = run_checkpoint({"convert", path(), out(), "--optimizer"});
  ASSERT_EQ(done.status.code, 0) << done.stderr_text;
  EXPECT_EQ(done.stdout_text,
            absl::StrCat(out(), "/model.safetensors: 2 tensors, 56 B in 1 file\n", out(),
                         "/optimizer.safetensors: 2 tensors, 56 B in 1 file\n"));
  const auto file = value_or_throw(Files::local().open(out() + "/model.safetensors"));
  const auto header = value_or_throw(internal::read_safetensors_header(*file, "model"));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].name, "count");  // Larger elements come first.
  EXPECT_EQ(header.tensors[1].name, "table");
  EXPECT_EQ(header.tensors[1].sizes, (std::vector<int64_t>{3, 4}));
  float values[12];
  throw_if_error(file->read(header.tensors[1].begin, values, sizeof(values)));
  for (int i = 0; i < 12; ++i) EXPECT_EQ(values[i], i);
}

TEST_F(CheckpointCommandTest, ConvertWritesTheIndexOfSeveralFiles) {
  save(42);
  const CompletedProcess done =
      run_checkpoint({"convert", path(), out(), "--max-shard-size", "50B"});
  ASSERT_EQ(done.status.code, 0) << done.stderr_text;
  EXPECT_EQ(text_of_file(out() + "/model.safetensors.index.json"), R"({
  "metadata": {
    "total_size": 56
  },
  "weight_map": {
    "count": "model-00002-of-00002.safetensors",
    "table": "model-00001-of-00002.safetensors"
  }
}
)");
  EXPECT_TRUE(std::filesystem::exists(out() + "/model-00001-of-00002.safetensors"));
  const CompletedProcess again = run_checkpoint({"convert", path(), out()});
  EXPECT_EQ(again.status.code, 2);
  EXPECT_THAT(again.stderr_text, HasSubstr("remove it or give another folder"));
}

TEST_F(CheckpointCommandTest, ConvertLeavesNothingOfADamagedCheckpoint) {
  save(42);
  damage(42, "ps-1-of-2.safetensors", -1);
  const CompletedProcess done = run_checkpoint({"convert", path(), out(), "--optimizer"});
  EXPECT_EQ(done.status.code, 1);
  EXPECT_THAT(done.stderr_text, HasSubstr("ps-1-of-2.safetensors"));
  EXPECT_TRUE(std::filesystem::is_empty(out()));
}

TEST_F(CheckpointCommandTest, MistakesAreUsageErrors) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"verify", "nowhere"}, "'nowhere' is not a folder"},
           {{"verify", folder_.path()}, "has no checkpoint"},
           {{"ls", "nowhere"}, "nowhere"},
           {{"show"}, "DIR is required"},
           {{"convert", folder_.path()}, "OUT is required"},
           {{"convert", folder_.path(), out(), "--max-shard-size", "many"}, "--max-shard-size"}}) {
    const CompletedProcess done = run_checkpoint(arguments);
    EXPECT_EQ(done.status.code, 2) << done.stderr_text;
    EXPECT_THAT(done.stderr_text, AllOf(HasSubstr("trireme: "), HasSubstr(message)));
  }
  save(42);
  const CompletedProcess alone = run_checkpoint({"diff", path()});
  EXPECT_EQ(alone.status.code, 2);
  EXPECT_THAT(alone.stderr_text, HasSubstr("give another one to compare it with"));
}

TEST(ProgressBarTest, ShowsBytesShareAndSpeed) {
  EXPECT_EQ(progress_line("verify", 1 << 20, 4 << 20, std::chrono::seconds(2)),
            "verify [######..................]  25 %  1.0 MiB of 4.0 MiB  512 KiB/s");
  EXPECT_THAT(progress_line("verify", 0, 0, std::chrono::seconds(1)), HasSubstr("] 100 %  0 B of"));
}

TEST(ProgressBarTest, AppearsOnATerminalAfterASecondAndIsRemoved) {
  ReadBack terminal(/*columns=*/80);
  const auto shown = [&] { return terminal.text(); };
  ManualClock clock;
  {
    ProgressBar bar("verify", terminal.file(), clock);
    clock.advance(std::chrono::milliseconds(900));
    bar.update(1, 4);
    EXPECT_EQ(shown(), "");
    clock.advance(std::chrono::milliseconds(100));
    bar.update(2, 4);
    EXPECT_THAT(shown(), HasSubstr("50 %"));
    bar.update(3, 4);
    EXPECT_EQ(shown(), "");  // The next line is due a tenth of a second later.
  }
  EXPECT_EQ(shown(), "\r\x1b[K");
}

}  // namespace
}  // namespace trireme
