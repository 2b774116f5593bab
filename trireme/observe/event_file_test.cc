#include "trireme/observe/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "trireme/base/masked_crc32c.h"
#include "trireme/base/status.h"
#include "trireme/observe/event.pb.h"
#include "trireme/testing/unsynced_files.h"

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;

// Returns the events of a file's bytes, and fails the test unless they are whole records.
std::vector<proto::Event> parse(const std::string& bytes) {
  std::vector<proto::Event> events;
  size_t offset = 0;
  const auto checked = [&](size_t size) {
    uint32_t crc = 1;
    std::string data;
    if (offset + size + sizeof(crc) <= bytes.size()) {
      data = bytes.substr(offset, size);
      std::memcpy(&crc, bytes.data() + offset + size, sizeof(crc));
    }
    EXPECT_EQ(crc, masked_crc32c(data.data(), data.size())) << "at byte " << offset;
    offset += size + sizeof(crc);
    return data;
  };
  while (offset < bytes.size()) {
    uint64_t length = 0;
    const std::string head = checked(sizeof(length));
    std::memcpy(&length, head.data(), head.size());
    EXPECT_TRUE(events.emplace_back().ParseFromString(checked(length)));
    if (testing::Test::HasFailure()) break;
  }
  return events;
}

class EventFileTest : public testing::Test {
 protected:
  EventFileTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "event_file_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~EventFileTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<EventFile> create(EventFileOptions options = {}) {
    return value_or_throw(EventFile::create(join_path(folder_, "run"), std::move(options)));
  }
  std::string path(const EventFile& file) const {
    return join_path(join_path(folder_, "run"), file.name());
  }
  std::string contents(const EventFile& file) const {
    return value_or_throw(Files::local().read_text(path(file), 1 << 20));
  }
  // Returns the steps of a file's events after the first record.
  std::vector<int64_t> steps(const EventFile& file) const {
    std::vector<int64_t> result;
    for (const proto::Event& event : parse(contents(file))) {
      if (event.has_summary()) result.push_back(event.step());
    }
    return result;
  }

  std::string folder_;
};

TEST_F(EventFileTest, BeginsWithAVersionAndHasANameThatTensorBoardKnows) {
  const auto before = std::chrono::system_clock::now();
  const auto file = create({.writer = "trireme 7"}), next = create();
  EXPECT_THAT(file->name(), MatchesRegex(absl::StrCat("events\\.out\\.tfevents\\.[0-9]{10}\\..+\\.",
                                                      getpid(), "\\.[0-9]+")));
  EXPECT_NE(file->name(), next->name());
  const auto events = parse(contents(*file));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].source_metadata().writer(), "trireme 7");
  EXPECT_NEAR(events[0].wall_time(),
              std::chrono::duration<double>(before.time_since_epoch()).count(), 60);
}

TEST_F(EventFileTest, WritesScalarsHistogramsAndTexts) {
  const auto file = create();
  file->add_scalar("loss", 0, 0);
  file->add_scalar("loss", 1, 0.1);
  const std::vector<HistogramBucket> buckets = {{-1, 0, 3}, {0, 2.5, 4}};
  file->add_histogram("w/histogram", 2, buckets);
  file->add_text("notes", 3, "**bold**");
  EXPECT_EQ(parse(contents(*file)).size(), 1u);  // The events are not flushed yet.
  ASSERT_TRUE(file->flush().ok());

  const auto events = parse(contents(*file));
  EXPECT_EQ(file->bytes_written(), contents(*file).size());
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[1].step(), 0);
  EXPECT_EQ(events[1].summary().value(0).content_case(),
            proto::EventSummary::Value::kSimpleValue);  // A 0 is written.
  EXPECT_EQ(events[2].step(), 1);
  EXPECT_EQ(events[2].summary().value(0).tag(), "loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 0.1f);

  const auto& histogram = events[3].summary().value(0);
  EXPECT_EQ(histogram.metadata().plugin_data().plugin_name(), "histograms");
  EXPECT_EQ(histogram.tensor().tensor_shape().dim(0).size(), 2);
  EXPECT_EQ(histogram.tensor().tensor_shape().dim(1).size(), 3);
  std::vector<HistogramBucket> written(2);
  ASSERT_EQ(histogram.tensor().tensor_content().size(), 48u);
  std::memcpy(written.data(), histogram.tensor().tensor_content().data(), 48);
  EXPECT_EQ(written, buckets);

  const auto& text = events[4].summary().value(0);
  EXPECT_EQ(text.metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(text.tensor().string_val(0), "**bold**");
}

TEST_F(EventFileTest, RepairsAPartAfterAFailedWrite) {
  UnsyncedFiles files;
  const auto file = value_or_throw(EventFile::create("/run", {.files = &files}));
  const std::string path = join_path("/run", file->name());
  file->add_scalar("loss", 1, 0.5);
  files.fail_at(files.operations() + 1, ErrorCode::kResourceExhausted);
  EXPECT_EQ(error_code(file->flush()), ErrorCode::kResourceExhausted);
  files.set_contents(path, files.contents(path) + "part");
  file->add_scalar("loss", 2, 0.5);
  ASSERT_TRUE(file->flush().ok());
  EXPECT_EQ(parse(files.contents(path)).size(), 3u);
}

TEST_F(EventFileTest, NamesTheFileOfAFullDisk) {
  const auto file = create();
  file->add_text("notes", 0, std::string(100'000, 'x'));
  // A limit of the length of files has the same effect as a full disk.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 10'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = file->flush();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(error_code(full), ErrorCode::kResourceExhausted);
  EXPECT_THAT(describe(full), HasSubstr(path(*file)));
  EXPECT_TRUE(file->flush().ok());
  EXPECT_EQ(parse(contents(*file)).size(), 2u);
}

TEST_F(EventFileTest, NamesAFolderThatCannotBeMade) {
  const std::string occupied = join_path(folder_, "file");
  std::ofstream(occupied) << "text";
  const auto file = EventFile::create(join_path(occupied, "run"));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(describe(file.status()), HasSubstr(occupied));
}

TEST_F(EventFileTest, RewindsOnlyTheFilesOfOneWriter) {
  const auto kept = create({.writer = "a"}), later = create({.writer = "a"}),
             other = create({.writer = "b"});
  uint64_t bytes = 0;
  for (int64_t step = 0; step < 4; ++step) {
    for (EventFile* file : {kept.get(), later.get(), other.get()}) {
      file->add_scalar("loss", step, 1);
      ASSERT_TRUE(file->flush().ok());
    }
    if (step == 1) bytes = kept->bytes_written();
  }
  std::ofstream(join_path(folder_, "run/events.out.tfevents.empty")).close();
  std::ofstream(join_path(folder_, "run/notes")) << "text";
  const auto run = join_path(folder_, "run");
  ASSERT_TRUE(rewind_event_files(run, "a", {{kept->name(), bytes}, {"missing", 5}}).ok());
  EXPECT_THAT(steps(*kept), ElementsAre(0, 1));
  EXPECT_FALSE(std::filesystem::exists(path(*later)));
  EXPECT_THAT(steps(*other), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(std::filesystem::exists(join_path(run, "notes")));
  EXPECT_TRUE(std::filesystem::exists(join_path(run, "events.out.tfevents.empty")));
  // A file that lost its end in a crash is not extended.
  ASSERT_TRUE(rewind_event_files(run, "a", {{kept->name(), bytes + 100}}).ok());
  EXPECT_THAT(steps(*kept), ElementsAre(0, 1));
  EXPECT_TRUE(rewind_event_files(join_path(folder_, "none"), "a", {}).ok());
}

}  // namespace
}  // namespace trireme
