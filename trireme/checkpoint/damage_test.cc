// Damages every byte of a checkpoint, and cuts every file at every length.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "trireme/base/sanitizer.h"
#include "trireme/checkpoint/sample_checkpoint.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme::internal {
namespace {

class DamageTest : public testing::Test {
 protected:
  DamageTest()
      : folder_(value_or_throw(save_sample(files_, "/checkpoints", 4))),
        manifest_(value_or_throw(CheckpointReader::open(files_, folder_))->manifest()) {}

  std::string path(const std::string& name) const { return join_path(folder_, name); }

  // Returns the error that open() or verify() finds.
  absl::Status check() {
    const auto reader = CheckpointReader::open(files_, folder_);
    return reader.ok() ? (*reader)->verify() : reader.status();
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names = {kManifestName};
    for (const SavedFile& file : manifest_.files) names.push_back(file.name);
    return names;
  }

  // Returns the name of the tensor that this byte belongs to; empty for a header.
  std::string tensor_at(const std::string& file, uint64_t offset) const {
    for (const TensorOfManifest& entry : tensors_of(manifest_)) {
      const SavedTensor& tensor = *entry.tensor;
      if (manifest_.files[static_cast<size_t>(tensor.file)].name == file &&
          offset >= tensor.offset && offset < tensor.offset + tensor.bytes) {
        return tensor.name;
      }
    }
    return "";
  }

  UnsyncedFiles files_;
  const std::string folder_;
  const Manifest manifest_;
};

TEST_F(DamageTest, EveryByteIsChecked) {
  ASSERT_TRUE(check().ok());
  int in_tensors = 0;
  for (const std::string& name : names()) {
    const std::string good = files_.contents(path(name));
    for (size_t i = 0; i < good.size(); ++i) {
      const std::string tensor = tensor_at(name, i);
      // Most of a header is padding, and a sanitizer learns nothing from each byte of it.
      if (kSanitized && tensor.empty() && i % 16 != 0) continue;
      for (const int flip : {1, 0x20, 0xff}) {
        if (flip != 0xff && name != kManifestName) continue;
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ flip);
        files_.set_contents(path(name), bad);
        const absl::Status status = check();
        const std::string text = describe(status);
        ASSERT_EQ(error_code(status), ErrorCode::kDataLoss)
            << name << " byte " << i << ": " << text;
        ASSERT_TRUE(absl::StrContains(text, path(name))) << text;
        ASSERT_TRUE(absl::StrContains(text, tensor)) << text << " without " << tensor;
        in_tensors += tensor.empty() ? 0 : 1;
      }
    }
    files_.set_contents(path(name), good);
  }
  EXPECT_EQ(in_tensors, 2 * 6 * 3 * 4 + 3 * 2 + 8);
  EXPECT_TRUE(check().ok());
}

TEST_F(DamageTest, EveryLengthIsChecked) {
  for (const std::string& name : names()) {
    const std::string good = files_.contents(path(name));
    for (size_t length = 0; length <= good.size() + 1; ++length) {
      if (length == good.size() || (kSanitized && length % 16 != 0)) continue;
      std::string bad = good;
      bad.resize(length, '\n');
      files_.set_contents(path(name), bad);
      const absl::Status status = check();
      ASSERT_EQ(error_code(status), ErrorCode::kDataLoss) << name << " with " << length << " bytes";
      ASSERT_TRUE(absl::StrContains(describe(status), path(name))) << status;
    }
    files_.set_contents(path(name), good);
  }
}

TEST_F(DamageTest, ReadNamesTheFileAndTheTensor) {
  const SavedTensor& tensor = manifest_.variables[0].shards[1].slots[0];
  const std::string file = path(manifest_.files[static_cast<size_t>(tensor.file)].name);
  std::string bytes = files_.contents(file);
  bytes[tensor.offset] ^= 1;
  files_.set_contents(file, bytes);
  const auto reader = value_or_throw(CheckpointReader::open(files_, folder_));
  EXPECT_TRUE(reader->read(reader->manifest().variables[0]).ok());
  const absl::Status status = reader->read_slot(reader->manifest().variables[0], 0).status();
  EXPECT_EQ(error_code(status), ErrorCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(describe(status), "w/part_1#exp_avg")) << status;
  EXPECT_TRUE(absl::StrContains(describe(status), "ps-1-of-2.safetensors")) << status;
}

TEST_F(DamageTest, MissingAndExchangedFilesAreNoticed) {
  const std::string first = files_.contents(path("ps-0-of-2.safetensors"));
  ASSERT_TRUE(files_.remove(path("ps-0-of-2.safetensors")).ok());
  absl::Status status = check();
  EXPECT_EQ(error_code(status), ErrorCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(describe(status), "ps-0-of-2.safetensors")) << status;
  // A file of another step has the same length and the same header, but other bytes.
  const std::string other = value_or_throw(save_sample(files_, "/checkpoints", 9));
  ASSERT_TRUE(files_
                  .write_text(path("ps-0-of-2.safetensors"),
                              files_.contents(join_path(other, "ps-0-of-2.safetensors")))
                  .ok());
  status = check();
  EXPECT_EQ(error_code(status), ErrorCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(describe(status), "ps-0-of-2.safetensors")) << status;
  ASSERT_TRUE(files_.remove(path(kManifestName)).ok());
  EXPECT_EQ(error_code(check()), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace trireme::internal
