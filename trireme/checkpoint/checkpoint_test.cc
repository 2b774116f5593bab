// Reading whole checkpoints and pieces of them, from real files.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "trireme/base/crc32c.h"
#include "trireme/checkpoint/sample_checkpoint.h"

namespace trireme::internal {
namespace {

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-save-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~CheckpointTest() override { std::filesystem::remove_all(folder_); }

  // Saves `tensor` in shards that end at these rows, all in one file.
  std::string save_large(const at::Tensor& tensor, const std::vector<int64_t>& ends) {
    CheckpointDirectory directory(files_, folder_);
    const std::string path = value_or_throw(directory.begin(1));
    Manifest manifest;
    manifest.variables = {
        {"large", tensor.scalar_type(), tensor.sizes().vec(), true, "", {}, {}, {}}};
    std::vector<at::Tensor> parts;
    std::vector<TensorToSave> tensors;
    for (size_t i = 0; i < ends.size(); ++i) {
      parts.push_back(tensor.slice(0, i == 0 ? 0 : ends[i - 1], ends[i]).contiguous());
      tensors.push_back(to_save(absl::StrCat("large/part_", i), parts.back()));
    }
    const WrittenFile written = value_or_throw(
        write_tensor_file(files_, join_path(path, "ps-0-of-1.safetensors"), tensors));
    manifest.files = {written.file};
    for (size_t i = 0; i < ends.size(); ++i) {
      const int64_t first = i == 0 ? 0 : ends[i - 1];
      manifest.variables[0].shards.push_back({first, ends[i] - first, written.tensors[i], {}, 0});
    }
    throw_if_error(directory.commit(path, manifest));
    return path;
  }

  Files& files_ = Files::local();
  std::string folder_;
};

TEST_F(CheckpointTest, IsSavedAndReadInRealFiles) {
  const std::string directory = folder_ + "/not/yet/there";
  EXPECT_TRUE(value_or_throw(CheckpointDirectory(files_, directory).list()).empty());
  const std::string first = value_or_throw(save_sample(files_, directory, 1));
  const std::string second = value_or_throw(save_sample(files_, directory, 2));
  expect_sample(files_, first, 1);
  expect_sample(files_, second, 2);
  CheckpointDirectory checkpoints(files_, directory);
  std::vector<CheckpointEntry> entries = value_or_throw(checkpoints.list());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].step, 2u);
  EXPECT_EQ(entries[0].path, second);
  EXPECT_EQ(entries[0].name, "step-0000000002");
  EXPECT_EQ(error_code(checkpoints.begin(2).status()), ErrorCode::kAlreadyExists);
  ASSERT_TRUE(checkpoints.remove(entries[1]).ok());
  EXPECT_FALSE(std::filesystem::exists(first));
  EXPECT_EQ(error_code(CheckpointReader::open(files_, first).status()), ErrorCode::kNotFound);
}

TEST_F(CheckpointTest, ReadsTensorsLargerThanABlockAndReportsProgress) {
  const at::Tensor tensor = at::randint(0, 1 << 30, {1000, 2501}, at::kInt);
  const std::string path = save_large(tensor, {1, 400, 1000});
  const auto reader = value_or_throw(CheckpointReader::open(files_, path));
  EXPECT_TRUE(value_or_throw(reader->read(reader->manifest().variables[0])).equal(tensor));
  std::vector<uint64_t> done;
  ASSERT_TRUE(reader
                  ->verify([&](uint64_t bytes, uint64_t total) {
                    done.push_back(bytes);
                    EXPECT_EQ(total, reader->manifest().files[0].bytes);
                  })
                  .ok());
  ASSERT_GT(done.size(), 2u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), reader->manifest().files[0].bytes);
}

TEST_F(CheckpointTest, PiecesFillTheRowsOfAnyNumberOfServers) {
  const at::Tensor tensor = at::rand({50, 7});
  const std::string path = save_large(tensor, {11, 12, 33, 50});
  const auto reader = value_or_throw(CheckpointReader::open(files_, path));
  const SavedVariable& variable = reader->manifest().variables[0];
  auto file = value_or_throw(files_.open(path + "/ps-0-of-1.safetensors"));
  for (int64_t servers = 1; servers <= 50; ++servers) {
    std::vector<PieceCrc> crcs;
    at::Tensor restored = at::zeros_like(tensor);
    for (int64_t server = 0; server < servers; ++server) {
      const int64_t first = 50 * server / servers, end = 50 * (server + 1) / servers;
      at::Tensor rows = restored.slice(0, first, end);
      for (const ReadPiece& piece : pieces_for(variable, -1, first, end - first)) {
        char* to = static_cast<char*>(rows.data_ptr()) + piece.to;
        ASSERT_LE(piece.to + piece.bytes, rows.nbytes());
        ASSERT_TRUE(file->read(piece.offset, to, piece.bytes).ok());
        crcs.push_back({piece.file, piece.offset, piece.bytes, crc32c(to, piece.bytes)});
      }
    }
    ASSERT_TRUE(restored.equal(tensor)) << servers;
    std::reverse(crcs.begin(), crcs.end());
    ASSERT_TRUE(check_pieces(reader->manifest(), crcs).ok()) << servers;
    crcs.push_back(crcs[0]);
    EXPECT_TRUE(check_pieces(reader->manifest(), crcs).ok()) << "read twice";
    crcs.pop_back();
    std::vector<PieceCrc> bad = crcs;
    bad[0].crc ^= 1;
    const absl::Status status = check_pieces(reader->manifest(), bad);
    EXPECT_EQ(error_code(status), ErrorCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(describe(status), "large/part_3")) << status;
    EXPECT_TRUE(absl::StrContains(describe(status), "ps-0-of-1.safetensors")) << status;
  }
}

TEST_F(CheckpointTest, PiecesMustCoverTheirTensors) {
  const std::string path = save_large(at::rand({10, 4}), {5, 10});
  const auto reader = value_or_throw(CheckpointReader::open(files_, path));
  const Manifest& manifest = reader->manifest();
  const uint64_t first = manifest.variables[0].shards[0].contents.offset;
  const uint32_t crc = manifest.variables[0].shards[0].contents.crc;
  EXPECT_TRUE(check_pieces(manifest, {}).ok());
  EXPECT_TRUE(check_pieces(manifest, {{0, first, 80, crc}}).ok());
  const std::vector<std::vector<PieceCrc>> wrong = {
      {{0, first, 64, crc}},                        // The end is missing.
      {{0, first + 16, 64, crc}},                   // The begin is missing.
      {{0, first, 32, 1}, {0, first + 48, 32, 1}},  // The middle is missing.
      {{0, first, 48, 1}, {0, first + 32, 48, 1}},  // Two pieces overlap.
      {{0, first, 160, crc}},                       // One piece has two tensors.
      {{0, 0, 16, crc}},                            // The header.
      {{1, first, 80, crc}},                        // Another file.
      {{-1, first, 80, crc}},
      {{0, UINT64_MAX, UINT64_MAX, crc}},
  };
  const absl::Status differs = check_pieces(manifest, {{0, first, 80, crc}, {0, first, 80, ~crc}});
  EXPECT_EQ(error_code(differs), ErrorCode::kDataLoss) << "two readers saw different bytes";
  for (const std::vector<PieceCrc>& pieces : wrong) {
    EXPECT_EQ(error_code(check_pieces(manifest, pieces)), ErrorCode::kInternal)
        << pieces[0].offset - first << " " << pieces[0].bytes;
  }
}

TEST_F(CheckpointTest, ScalarsAndEmptyVariablesHavePieces) {
  const std::string path = value_or_throw(save_sample(files_, folder_, 1));
  const auto reader = value_or_throw(CheckpointReader::open(files_, path));
  for (const SavedVariable& variable : reader->manifest().variables) {
    const std::vector<ReadPiece> pieces = pieces_for(variable, -1, 0, variable.rows());
    if (variable.name == "count") {
      ASSERT_EQ(pieces.size(), 1u);
      EXPECT_EQ(pieces[0].bytes, 8u);
      EXPECT_EQ(pieces[0].tensor, "count");
    }
    EXPECT_EQ(pieces.empty(), variable.name == "nothing");
  }
  EXPECT_EQ(error_code(reader->read_slot(reader->manifest().variables[0], 1).status()),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace trireme::internal
