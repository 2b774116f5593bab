#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/dataset_steps.h"
#include "trireme/data/step_limits.h"
#include "trireme/data/stream.h"
#include "trireme/exec/random.h"

// Streams of steps that pass items on unchanged, be they row numbers or elements.
namespace trireme::internal {

// Opens its input again for each repetition, with a key for that repetition. An input that is empty
// ends it. If the number of elements varies, a repetition that is empty is passed over, and many of
// them in a row are an error.
template <typename T>
class Repeated : public Stream<T> {
 public:
  Repeated(DatasetStepPtr step, uint64_t key, Opener<T> open)
      : step_(std::move(step)),
        key_(key),
        open_(std::move(open)),
        size_(step_->input->varies ? kUnknownCount : step_->input->count) {}

  Next<T> next() override {
    const int64_t count = step_->def.repeat().count();
    while (!ended_) {
      const bool fresh = input_ == nullptr;
      if (fresh) {
        ended_ = repetition_ == count;
        if (ended_) break;
        input_ = open_(step_seed(key_, repetition_++));
      }
      TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, input_->next());
      if (item) {
        empty_ = 0;
        return item;
      }
      input_.reset();
      if (fresh) TRIREME_RETURN_IF_ERROR(pass_empty());
    }
    return std::nullopt;
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    while (skipped < count && !ended_) {
      const bool fresh = input_ == nullptr;
      if (fresh) {
        skipped += jump(count - skipped);
        if (skipped == count) break;
        ended_ = repetition_ == step_->def.repeat().count();
        if (ended_) break;
        input_ = open_(step_seed(key_, repetition_++));
      }
      const int64_t wanted = std::min(count - skipped, most_skipped());
      TRIREME_ASSIGN_OR_RETURN(const int64_t items, input_->skip(wanted));
      skipped += items;
      if (items > 0) empty_ = 0;
      if (skipped == count) break;
      if (items == wanted) return too_long(wanted);
      input_.reset();
      if (fresh && items == 0) TRIREME_RETURN_IF_ERROR(pass_empty());
      // The next repetitions of a source that had to be read to count it are jumped over.
      if (fresh && !step_->input->varies) size_ = items;
    }
    return skipped;
  }

 private:
  static constexpr int kMostEmpty = 1000;

  // Ends after an empty repetition, unless the next one may have elements.
  absl::Status pass_empty() {
    const DatasetStep& input = *step_->input;
    ended_ = !input.varies || input.count == 0;
    if (ended_ || ++empty_ < kMostEmpty) return absl::OkStatus();
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat(kMostEmpty,
                                    " repetitions in a row had no elements; correct the filter() "
                                    "or the generator before repeat()"),
                       origin());
  }
  // Returns how many items of one repetition may be skipped. Only reading shows how many there are,
  // and it may take as long as to draw them.
  int64_t most_skipped() const {
    if (step_->input->count != kUnknownCount) return kEndless;
    const double reads = skip_reads(*step_->input, kMostReads);
    if (reads < kMostReads) return kEndless;
    return static_cast<int64_t>(std::max(kMostReads * (kMostReads / reads), 1.0));
  }
  absl::Status too_long(int64_t items) const {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("a repetition has more than ", items,
                                    " elements, which it would draw again to continue after them; "
                                    "divide the data among more workers, or shuffle after batch()"),
                       origin());
  }
  Origin origin() const { return {"", absl::StrCat("dataset step ", step_->number, " 'repeat'")}; }

  // Skips whole repetitions, at most `count` items. Returns the number of items.
  int64_t jump(int64_t count) {
    if (size_ <= 0 || size_ == kEndless) return 0;
    const int64_t left = step_->def.repeat().count() - repetition_;
    const int64_t repetitions = std::min(count / size_, left);
    repetition_ += repetitions;
    return repetitions * size_;
  }

  const DatasetStepPtr step_;
  const uint64_t key_;
  const Opener<T> open_;
  int64_t size_;            // items of a repetition, if all have the same number and it is known
  int64_t repetition_ = 0;  // number of the next repetition to be opened
  int empty_ = 0;           // repetitions without items since the last item
  StreamPtr<T> input_;
  bool ended_ = false;
};

// Gives the first items.
template <typename T>
class Taken : public Stream<T> {
 public:
  Taken(int64_t count, StreamPtr<T> input) : left_(count), input_(std::move(input)) {}

  Next<T> next() override {
    if (left_ == 0) return std::nullopt;
    --left_;
    return input_->next();
  }
  Skipped skip(int64_t count) override {
    TRIREME_ASSIGN_OR_RETURN(const int64_t skipped, input_->skip(std::min(count, left_)));
    left_ -= skipped;
    return skipped;
  }

 private:
  int64_t left_;
  const StreamPtr<T> input_;
};

// Gives all items but the first ones, which it skips when it is first asked.
template <typename T>
class WithoutFirst : public Stream<T> {
 public:
  WithoutFirst(int64_t count, StreamPtr<T> input) : left_(count), input_(std::move(input)) {}

  Next<T> next() override {
    TRIREME_RETURN_IF_ERROR(skip_first());
    return input_->next();
  }
  Skipped skip(int64_t count) override {
    TRIREME_RETURN_IF_ERROR(skip_first());
    return input_->skip(count);
  }

 private:
  absl::Status skip_first() {
    const int64_t count = std::exchange(left_, 0);
    return count > 0 ? input_->skip(count).status() : absl::OkStatus();
  }

  int64_t left_;
  const StreamPtr<T> input_;
};

// Gives every `count`-th item, from item `index` on.
template <typename T>
class Sharded : public Stream<T> {
 public:
  Sharded(int64_t count, int64_t index, StreamPtr<T> input)
      : count_(count), before_(index), input_(std::move(input)) {}

  Next<T> next() override {
    TRIREME_RETURN_IF_ERROR(input_->skip(std::exchange(before_, count_ - 1)).status());
    return input_->next();
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    while (skipped < count) {
      // As many as fit into a number at once.
      const int64_t part = std::min(count - skipped, (kEndless - before_) / count_);
      const int64_t wanted = before_ + (part - 1) * count_ + 1;
      TRIREME_ASSIGN_OR_RETURN(const int64_t items, input_->skip(wanted));
      if (items < wanted) {
        const int64_t taken = items <= before_ ? 0 : (items - before_ - 1) / count_ + 1;
        return skipped + taken;
      }
      before_ = count_ - 1;
      skipped += part;
    }
    return skipped;
  }

 private:
  const int64_t count_;
  int64_t before_;  // items to pass over before the next one
  const StreamPtr<T> input_;
};

// Gives the items of two streams one after the other.
template <typename T>
class Concatenated : public Stream<T> {
 public:
  Concatenated(StreamPtr<T> first, StreamPtr<T> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  Next<T> next() override {
    if (first_ != nullptr) {
      TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, first_->next());
      if (item) return item;
      first_.reset();
    }
    return second_->next();
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    if (first_ != nullptr) {
      TRIREME_ASSIGN_OR_RETURN(skipped, first_->skip(count));
      if (skipped == count) return skipped;
      first_.reset();
    }
    TRIREME_ASSIGN_OR_RETURN(const int64_t items, second_->skip(count - skipped));
    return skipped + items;
  }

 private:
  StreamPtr<T> first_;
  const StreamPtr<T> second_;
};

}  // namespace trireme::internal
