#pragma once

#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

// Streams of numbers, for the tests of streams.
namespace trireme::internal {

// Counts the calls of streams.
struct StreamCalls {
  std::atomic<int64_t> opened = 0, made = 0, skipped = 0;
};

inline Element number_element(int64_t number) {
  return {at::scalar_tensor(number, at::kLong)};
}

inline int64_t number_in(const Element& element) {
  return element[0].item<int64_t>();
}

// Gives the numbers from 0 up to but not including `count`. The number `bad` is an error instead,
// or an exception if `throws` is true.
class NumberStream : public Stream<Element> {
 public:
  explicit NumberStream(int64_t count, StreamCalls* calls = nullptr, int64_t bad = -1,
                        bool throws = false)
      : count_(count), calls_(calls), bad_(bad), throws_(throws) {
    if (calls_ != nullptr) ++calls_->opened;
  }

  Next<Element> next() override {
    if (next_ == count_) return std::nullopt;
    if (calls_ != nullptr) ++calls_->made;
    const int64_t number = next_++;
    if (number != bad_) return number_element(number);
    if (throws_) throw std::runtime_error("bad number");
    return make_status(ErrorCode::kDataLoss, "bad number");
  }
  Skipped skip(int64_t count) override {
    const int64_t skipped = std::min(count, count_ - next_);
    next_ += skipped;
    if (calls_ != nullptr) calls_->skipped += skipped;
    return skipped;
  }

 private:
  const int64_t count_;
  StreamCalls* const calls_;
  const int64_t bad_;
  const bool throws_;
  int64_t next_ = 0;
};

// Returns the next number, or nullopt at the end. Throws Error.
inline std::optional<int64_t> next_number(Stream<Element>& stream) {
  const std::optional<Element> element = value_or_throw(stream.next());
  return element ? std::optional<int64_t>(number_in(*element)) : std::nullopt;
}

// Returns the numbers that are left, at most `most`.
inline std::vector<int64_t> numbers_left(Stream<Element>& stream, size_t most = 1000) {
  std::vector<int64_t> numbers;
  while (numbers.size() < most) {
    const std::optional<int64_t> number = next_number(stream);
    if (!number) break;
    numbers.push_back(*number);
  }
  return numbers;
}

inline std::vector<int64_t> numbers_between(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers;
  for (int64_t i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

// Skips, draws and skips again in streams that give the numbers from 0 up to 20.
inline void expect_skips(const std::function<StreamPtr<Element>()>& open) {
  constexpr int64_t kCount = 20;
  for (int64_t drawn = 0; drawn <= 4; ++drawn) {
    for (int64_t first : {0, 1, 3, 15, 30}) {
      for (int64_t second : {0, 2, 7, 30}) {
        SCOPED_TRACE(drawn * 10'000 + first * 100 + second);
        const StreamPtr<Element> stream = open();
        int64_t at = drawn;
        EXPECT_EQ(numbers_left(*stream, drawn), numbers_between(0, drawn));
        EXPECT_EQ(value_or_throw(stream->skip(first)), std::min(first, kCount - at));
        at = std::min(at + first, kCount);
        const auto one = next_number(*stream);
        EXPECT_EQ(one, at < kCount ? std::optional<int64_t>(at) : std::nullopt);
        at = std::min(at + 1, kCount);
        EXPECT_EQ(value_or_throw(stream->skip(second)), std::min(second, kCount - at));
        at = std::min(at + second, kCount);
        EXPECT_EQ(numbers_left(*stream), numbers_between(at, kCount));
        EXPECT_EQ(next_number(*stream), std::nullopt);
      }
    }
  }
}

}  // namespace trireme::internal
