#include "trireme/ps/stream_capture.h"

#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"
#include "trireme/ps/variable_store.h"

namespace trireme::internal {
namespace {

using std::chrono::seconds;
using Variables = std::vector<std::shared_ptr<StoredVariable>>;

// Returns variables whose segments share blocks, and fill several of them.
Variables make_captured(VariableStore& store) {
  Variables variables;
  const auto rule = make_rule("adam", {});
  for (const int64_t rows : {1, 5, 3000, 20'000, 7}) {
    const at::Tensor initial = at::rand({rows, 50});
    const std::string name = "v" + std::to_string(variables.size());
    const auto made = value_or_throw(store.make(
        "c", name, {c10::kFloat, {rows, 50}}, [&](at::Tensor& tensor) { tensor.copy_(initial); }));
    throw_if_error(store.set_optimizer(*made.variable, rule));
    variables.push_back(made.variable);
  }
  return variables;
}

// Returns the contents of the file behind its header, as they are now.
std::string data_of(const SavedImage& image) {
  std::string data(image.data_bytes(), '\0');
  for (const SavedImage::Segment& segment : image.segments()) {
    std::memcpy(data.data() + segment.offset, segment.data, segment.bytes);
  }
  return data;
}

Update dense_update(const StoredVariable& variable) {
  Update update;
  update.kind = Update::Kind::kGradient;
  update.values = at::full(variable.tensor.sizes(), 0.5);
  return update;
}

Update row_update(const StoredVariable& variable, int64_t row) {
  Update update;
  update.kind = Update::Kind::kGradient;
  update.ids = at::full({1}, row, at::kLong);
  update.values = at::full({1, variable.tensor.size(1)}, 0.25);
  return update;
}

TEST(StreamCapture, CopiesTheContentsAtItsBeginWhileTheyChange) {
  VariableStore store;
  const Variables variables = make_captured(store);
  for (const auto& variable : variables) {
    throw_if_error(variable->apply(dense_update(*variable), std::nullopt, {}).status());
  }
  const auto image = value_or_throw(SavedImage::make(variables));
  EXPECT_GT(image->blocks(), 5u);
  const std::string expected = data_of(*image);
  const auto capture = std::make_shared<StreamCapture>(image, seconds(60));
  for (const auto& variable : variables) EXPECT_EQ(variable->watch(capture), 1);

  std::atomic<bool> stop = false;
  std::vector<std::future<void>> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.push_back(std::async(std::launch::async, [&, thread] {
      for (int64_t i = thread; !stop; ++i) {
        StoredVariable& variable = *variables[i % variables.size()];
        const Update update = i % 3 == 0 ? dense_update(variable)
                                         : row_update(variable, i * 7919 % variable.tensor.size(0));
        throw_if_error(variable.apply(update, std::nullopt, {}).status());
      }
    }));
  }
  std::string written(image->blocks() * SavedImage::kBlockBytes, '\0');
  std::vector<std::future<void>> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.push_back(std::async(std::launch::async, [&] {
      while (const auto run = capture->claim()) {
        ASSERT_TRUE(capture->copy(*run, written.data() + run->first * SavedImage::kBlockBytes));
        capture->note_written();
      }
    }));
  }
  for (auto& writer : writers) writer.get();
  stop = true;
  for (auto& thread : threads) thread.get();
  written.resize(expected.size());
  EXPECT_TRUE(written == expected);
  EXPECT_FALSE(data_of(*image) == expected);
  for (size_t i = 0; i < image->segments().size(); ++i) {
    const SavedImage::Segment& segment = image->segments()[i];
    ASSERT_EQ(capture->crcs()[i], crc32c(expected.data() + segment.offset, segment.bytes));
  }
  capture->end();
  for (const auto& variable : variables) variable->unwatch(capture.get());
}

TEST(StreamCapture, WritesFirstWhatChangesHaveCopied) {
  VariableStore store;
  const Variables variables = make_captured(store);
  const auto image = value_or_throw(SavedImage::make(variables));
  const auto capture = std::make_shared<StreamCapture>(image, seconds(60));
  for (const auto& variable : variables) variable->watch(capture);
  StoredVariable& large = *variables[3];
  const SavedImage::Place& place = image->places(large)[0];
  const size_t last = place.segment_of(place.bytes - 1);
  throw_if_error(large.apply(row_update(large, 19'999), std::nullopt, {}).status());
  const auto run = capture->claim();
  ASSERT_TRUE(run);
  EXPECT_EQ(run->first, image->segments()[last].offset / SavedImage::kBlockBytes);
  EXPECT_GT(capture->stats().pool_peak, 0u);
  EXPECT_EQ(capture->stats().waited, Duration::zero());
  capture->end();
  EXPECT_FALSE(capture->claim());
  EXPECT_FALSE(capture->copy(*run, nullptr));
  for (const auto& variable : variables) variable->unwatch(capture.get());
}

}  // namespace
}  // namespace trireme::internal
