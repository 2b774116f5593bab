#include <sys/mount.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>

#include "trireme/ps/save_service.h"
#include "trireme/ps/saves.pb.h"
#include "trireme/ps/saves_fixture.h"
#include "trireme/testing/wait_until.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Specs = std::vector<TrainedVariables::Spec>;
namespace fs = std::filesystem;

const Specs kModel = {{"scalar", {}, "adam"},         {"bias", {7}, "adam"},
                      {"weight", {300, 40}, "adam"},  {"counts", {13}, ""},
                      {"table", {500, 9}, "adagrad"}, {"empty", {0, 3}, ""}};

class SavesTest : public testing::TestWithParam<bool> {
 protected:
  bool stream() const { return GetParam(); }

  TemporaryFolder folder_;
  TestCheckpoints checkpoints_{folder_.path()};
};
INSTANTIATE_TEST_SUITE_P(Modes, SavesTest, testing::Bool(),
                         [](const auto& mode) { return mode.param ? "Stream" : "Copy"; });

TEST_P(SavesTest, HasTheStateAtTheCut) {
  TestServers servers(2);
  TrainedVariables trained(servers, 3, kModel);
  trained.train(3);
  const auto expected = trained.pull();
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, stream()));
  trained.train(5, 7);
  const auto reader = checkpoints_.commit(*save, 1);
  throw_if_error(reader->verify());
  const auto state = state_of(*reader);
  for (size_t i = 0; i < kModel.size(); ++i) {
    EXPECT_TRUE(state.at(kModel[i].name).equal(expected[i])) << kModel[i].name;
  }
  EXPECT_EQ(state.at("weight step").item<double>(), 3);
  EXPECT_FALSE(trained.pull()[2].equal(expected[2]));
  const SavedVariable& weight = reader->manifest().variables[2];
  EXPECT_EQ(weight.rule, "adam");
  EXPECT_EQ(weight.shards.size(), 3u);
  EXPECT_EQ(weight.options, make_rule("adam", {})->options());
  EXPECT_EQ(save->stats().bytes,
            reader->manifest().files[0].bytes + reader->manifest().files[1].bytes);
}

// Training must go on as it would have without the restart, so slots and steps count too.
TEST_P(SavesTest, LoadsOntoAnotherNumberOfShardsBitwise) {
  TestServers servers(3), others(2);
  TrainedVariables trained(servers, 4, kModel);
  trained.train(4);
  const auto reader = checkpoints_.save(trained, 4, stream());
  TrainedVariables restored(others, 3, kModel);
  restored.train(1, 5);
  uint64_t last = 0, total = 0;
  throw_if_error(ps_load(restored.client(), reader->path(), reader->manifest(),
                         loads_of(restored, reader->manifest()), [&](uint64_t done, uint64_t all) {
                           last = done;
                           total = all;
                         }));
  EXPECT_GT(total, 0u);
  EXPECT_EQ(last, total);
  expect_same_state(*reader, *checkpoints_.save(restored, 5, stream()));
  trained.train(3, 2);
  restored.train(3, 2);
  const auto expected = trained.pull(), found = restored.pull();
  for (size_t i = 0; i < kModel.size(); ++i) {
    EXPECT_TRUE(found[i].equal(expected[i])) << kModel[i].name;
  }
}

TEST_P(SavesTest, RejectsAFileThatExists) {
  TestServers servers(1);
  TrainedVariables trained(servers, 1, kModel);
  folder_.write("ps-0-of-1.safetensors", "mine");
  const auto save = TestCheckpoints::begin_in(trained, folder_.path(), stream());
  EXPECT_EQ(error_code(save.status()), ErrorCode::kAlreadyExists) << save.status();
  EXPECT_EQ(folder_.read("ps-0-of-1.safetensors"), "mine");
}

TEST_P(SavesTest, AbortRemovesTheFile) {
  TestServers servers(2);
  TrainedVariables trained(servers, 2, kModel);
  const auto files = [&] {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(checkpoints_.path())) {
      count += entry.path().extension() == ".safetensors";
    }
    return count;
  };
  auto save = value_or_throw(checkpoints_.begin(trained, 1, stream()));
  EXPECT_EQ(files(), 2u);
  save.reset();
  EXPECT_TRUE(wait_until([&] { return files() == 0; }, seconds(20)));
  save = value_or_throw(checkpoints_.begin(trained, 1, stream()));
  throw_if_error(checkpoints_.commit(*save, 1)->verify());
  EXPECT_EQ(files(), 2u);
  save.reset();  // a save that has succeeded stays
  EXPECT_EQ(files(), 2u);
}

TEST_P(SavesTest, IsGivenUpWhenTheClientIsGone) {
  TestServers servers(1, {.give_up_saves_after = seconds(1)});
  TrainedVariables trained(servers, 1, kModel);
  const auto save = value_or_throw(checkpoints_.begin(trained, 1, stream()));
  const std::string file = checkpoints_.path() + "/ps-0-of-1.safetensors";
  EXPECT_TRUE(wait_until([&] { return !fs::exists(file); }, seconds(20)));
  const auto saved = save->wait();
  EXPECT_FALSE(saved.ok());
  checkpoints_.save(trained, 2, stream());
}

TEST_P(SavesTest, AFullDiskFailsTheSaveOnly) {
  const std::string disk = folder_.path() + "/disk";
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  {
    TestServers servers(1);
    TrainedVariables trained(servers, 1, {{"large", {600'000}, "adam"}, {"small", {10}, "adam"}});
    const auto save = value_or_throw(TestCheckpoints::begin_in(trained, disk, stream()));
    trained.train(2);
    const auto saved = save->wait();
    EXPECT_EQ(error_code(saved.status()), ErrorCode::kResourceExhausted) << saved.status();
    EXPECT_NE(saved.status().message().find("ps-0-of-1.safetensors"), std::string::npos)
        << saved.status();
    EXPECT_TRUE(
        wait_until([&] { return !fs::exists(disk + "/ps-0-of-1.safetensors"); }, seconds(20)));
    trained.train(1);
    throw_if_error(checkpoints_.save(trained, 3, stream())->verify());
  }
  umount2(disk.c_str(), MNT_DETACH);
}

TEST(Saves, RejectFoldersOutsideOfTheRoot) {
  TemporaryFolder folder;
  const std::string root = folder.path() + "/root", outside = folder.path() + "/rootless";
  fs::create_directories(root + "/inside");
  fs::create_directory(outside);
  fs::create_directory_symlink(outside, root + "/link");
  fs::create_directory_symlink(root + "/inside", root + "/good");
  TestServers servers(1, {}, root);
  TrainedVariables trained(servers, 1, kModel);
  const auto load_from = [&](const std::string& directory) {
    LoadRequest load;
    load.mutable_scope()->set_container("default");
    load.set_directory(directory);
    return trained.client().channel(0).call(kLoadVariables, make_message(load)).status();
  };
  for (const std::string& directory : {outside, root + "/../rootless", root + "/link"}) {
    const auto save = TestCheckpoints::begin_in(trained, directory, false);
    EXPECT_EQ(error_code(save.status()), ErrorCode::kPermissionDenied) << save.status();
    EXPECT_NE(save.status().message().find("--checkpoint-root"), std::string::npos);
    EXPECT_FALSE(fs::exists(outside + "/ps-0-of-1.safetensors"));
    EXPECT_EQ(error_code(load_from(directory)), ErrorCode::kPermissionDenied);
  }
  EXPECT_EQ(error_code(load_from(root + "/missing/../link")), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(TestCheckpoints::begin_in(trained, root + "/good", false).ok());
}

TEST(Saves, RejectAFolderThatIsNotShared) {
  TemporaryFolder folder;
  TestServers servers(1);
  TrainedVariables trained(servers, 1, kModel);
  const auto begin = [&](const std::string& directory, const std::string& probe) {
    const auto save =
        PsSave::begin(trained.client(), trained.variables(),
                      {.directory = directory, .probe = probe, .id = "x"}, after(seconds(20)));
    return error_code(save.status());
  };
  EXPECT_EQ(begin(folder.path(), "absent"), ErrorCode::kFailedPrecondition);
  folder.write(kProbeName, "another");
  EXPECT_EQ(begin(folder.path(), "expected"), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(begin(folder.path(), ""), ErrorCode::kInvalidArgument);
  EXPECT_EQ(begin(folder.path() + "/absent", "x"), ErrorCode::kFailedPrecondition);
  folder.write("target", "secret");
  fs::remove(folder.path() + "/" + kProbeName);
  fs::create_symlink("target", folder.path() + "/" + kProbeName);
  EXPECT_EQ(begin(folder.path(), "secret"), ErrorCode::kFailedPrecondition);
}

TEST(Saves, ACopyThatExceedsTheMemoryLimitSuggestsStream) {
  TemporaryFolder folder;
  TestCheckpoints checkpoints(folder.path());
  TestServers servers(1, {.memory_limit = 1'000'000});
  TrainedVariables trained(servers, 1, {{"large", {200'000}, ""}});
  const auto save = checkpoints.begin(trained, 1, /*stream=*/false);
  EXPECT_EQ(error_code(save.status()), ErrorCode::kResourceExhausted) << save.status();
  EXPECT_NE(save.status().message().find("stream"), std::string::npos) << save.status();
  checkpoints.save(trained, 2, /*stream=*/true);
}

TEST(Saves, DamagedBytesMakeALoadFailNamingFileAndTensor) {
  TemporaryFolder folder;
  TestCheckpoints checkpoints(folder.path());
  TestServers servers(2);
  TrainedVariables trained(servers, 2, kModel);
  trained.train(2);
  const auto reader = checkpoints.save(trained, 1, /*stream=*/false);
  const Manifest& manifest = reader->manifest();
  const SavedTensor& slot = manifest.variables[2].shards[1].slots[1];
  std::fstream file(reader->path() + "/" + manifest.files[slot.file].name,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(slot.offset + 5));
  const char damaged = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(slot.offset + 5));
  file.put(damaged);
  file.close();
  const absl::Status loaded =
      ps_load(trained.client(), reader->path(), manifest, loads_of(trained, manifest));
  EXPECT_EQ(error_code(loaded), ErrorCode::kDataLoss);
  const std::string text = describe(loaded);
  EXPECT_NE(text.find(slot.name), std::string::npos) << text;
  EXPECT_NE(text.find(manifest.files[slot.file].name), std::string::npos) << text;
}

TEST(Saves, LoadsRejectAnotherShapeOrOptimizer) {
  TemporaryFolder folder;
  TestCheckpoints checkpoints(folder.path());
  TestServers servers(1);
  TrainedVariables trained(servers, 1, {{"w", {4, 3}, "adam"}});
  const auto reader = checkpoints.save(trained, 1, /*stream=*/false);
  const Manifest& manifest = reader->manifest();
  const auto load = [&](const Specs& specs) {
    TestServers others(1);
    TrainedVariables other(others, 1, specs);
    const auto status =
        ps_load(other.client(), reader->path(), manifest, loads_of(other, manifest));
    EXPECT_NE(describe(status).find("'w'"), std::string::npos) << status;
    return error_code(status);
  };
  EXPECT_EQ(load({{"w", {3, 4}, "adam"}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load({{"w", {4, 3}, "adagrad"}}), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(load({{"w", {4, 3}, ""}}), ErrorCode::kFailedPrecondition);
}

TEST(Saves, MalformedRequestsAreErrors) {
  TemporaryFolder folder;
  TestServers servers(1);
  TrainedVariables trained(servers, 1, {{"w", {4}, "adam"}});
  folder.write("file", std::string(100, 'x'));
  const uint64_t handle = trained.variables()[0].handle(0);
  const auto load = [&](const std::function<void(LoadRequest&, LoadRequest::Target&)>& change) {
    LoadRequest request;
    request.mutable_scope()->set_container("default");
    request.set_directory(folder.path());
    request.add_files("file");
    LoadRequest::Target& target = *request.add_targets();
    target.set_handle(handle);
    target.set_rule("adam");
    target.add_pieces()->set_bytes(16);
    change(request, target);
    return error_code(
        trained.client().channel(0).call(kLoadVariables, make_message(request)).status());
  };
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  using Request = LoadRequest;
  using Target = LoadRequest::Target;
  EXPECT_EQ(load([](Request&, Target&) {}), ErrorCode::kOk);
  EXPECT_EQ(load([](Request&, Target& t) { t.set_handle(999); }), ErrorCode::kNotFound);
  EXPECT_EQ(load([](Request&, Target& t) { t.set_slot(2); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load([](Request&, Target& t) { t.set_step(-1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(load([](Request&, Target& t) { t.mutable_pieces(0)->set_file(1); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(load([](Request&, Target& t) { t.mutable_pieces(0)->set_bytes(0); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(load([](Request&, Target& t) { t.mutable_pieces(0)->set_to(1); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(load([&](Request&, Target& t) { t.mutable_pieces(0)->set_to(most); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(load([](Request&, Target& t) { t.mutable_pieces(0)->set_offset(85); }),
            ErrorCode::kDataLoss);
  EXPECT_EQ(load([&](Request&, Target& t) { t.mutable_pieces(0)->set_offset(most); }),
            ErrorCode::kDataLoss);
  for (const char* name : {"../file", "", ".", "..", "/etc/hostname"}) {
    EXPECT_EQ(load([&](Request& r, Target&) { r.set_files(0, name); }),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(load([](Request& r, Target&) { r.set_directory("relative"); }),
            ErrorCode::kInvalidArgument);

  const auto begin = [&](const std::function<void(BeginSaveRequest&)>& change) {
    folder.write(kProbeName, "probe");
    BeginSaveRequest request;
    request.mutable_scope()->set_container("default");
    request.set_directory(folder.path());
    request.set_probe("probe");
    request.set_id("id");
    request.set_servers(1);
    request.add_handles(handle);
    change(request);
    return error_code(trained.client().channel(0).call(kBeginSave, make_message(request)).status());
  };
  EXPECT_EQ(begin([&](BeginSaveRequest& r) { r.add_handles(handle); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(begin([](BeginSaveRequest& r) { r.add_handles(999); }), ErrorCode::kNotFound);
  EXPECT_EQ(begin([](BeginSaveRequest& r) { r.set_index(1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(begin([](BeginSaveRequest& r) { r.set_id(""); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(begin([](BeginSaveRequest& r) { r.set_probe(std::string(65, 'x')); }),
            ErrorCode::kInvalidArgument);
  WaitSaveRequest wait;
  wait.set_id("unknown");
  EXPECT_EQ(error_code(trained.client().channel(0).call(kWaitSave, make_message(wait)).status()),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trireme::internal
