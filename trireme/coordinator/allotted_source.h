#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/coordinator/resource_reader.h"
#include "trireme/data/used_numbers.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Gives one run of a closure the elements that were allotted to it, in order. Not thread-safe: a
// run draws on one thread at a time.
class AllottedSource final : public ElementSource {
 public:
  // An element that does not exist.
  struct End {
    uint64_t number = 0;
    bool is_beyond = false;  // True if its whole range does not exist.
  };

  AllottedSource(std::shared_ptr<ResourceReader> reader, std::vector<NumberSpan> numbers)
      : reader_(std::move(reader)), numbers_(std::move(numbers)) {}

  NumberedElement draw() override {
    while (span_ < numbers_.size() && offset_ == numbers_[span_].count) {
      ++span_;
      offset_ = 0;
    }
    if (span_ == numbers_.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the closure draws more elements than the coordinator has allotted to it",
                  {"", name()});
    }
    const uint64_t number = numbers_[span_].first + offset_;
    try {
      NumberedElement drawn{reader_->take(number), number};
      ++offset_;
      return drawn;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kEndOfData) end_ = {number, reader_->is_beyond(number)};
      throw;
    }
  }

  // Returns the element that draw() did not find, if there was one.
  const std::optional<End>& end() const { return end_; }

  // Elements are put back in the opposite order in which they were drawn.
  void put_back(NumberedElement element) override {
    while (offset_ == 0) offset_ = numbers_[--span_].count;
    --offset_;
    reader_->put_back(element.number, std::move(element.element));
  }

  std::string name() const override { return reader_->name(); }

 private:
  const std::shared_ptr<ResourceReader> reader_;
  const std::vector<NumberSpan> numbers_;
  size_t span_ = 0;      // Span of the next element.
  uint64_t offset_ = 0;  // Place of the next element in it.
  std::optional<End> end_;
};

using AllottedSources = std::vector<std::shared_ptr<AllottedSource>>;

}  // namespace trireme::internal
