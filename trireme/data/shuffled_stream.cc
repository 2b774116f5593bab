#include "trireme/data/shuffled_stream.h"

#include <algorithm>
#include <optional>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/block_streams.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

// Returns the random numbers of a shuffle. The number of the step makes two shuffles with the same
// seed independent of each other.
std::mt19937_64 shuffle_random(const DatasetStep& step, uint64_t key) {
  return std::mt19937_64(step_seed(step_seed(step.def.shuffle().seed(), step.number), key));
}

// Removes a random one of the items.
template <typename T>
T take_random(std::vector<T>& items, std::mt19937_64& random) {
  std::swap(items[random() % items.size()], items.back());
  T item = std::move(items.back());
  items.pop_back();
  return item;
}

// Keeps a buffer of items full, as long as the input has any, and gives a random one of them.
template <typename T>
class ShuffledItems : public Stream<T> {
 public:
  ShuffledItems(const DatasetStep& step, uint64_t key, StreamPtr<T> input)
      : size_(step.def.shuffle().buffer()),
        random_(shuffle_random(step, key)),
        input_(std::move(input)),
        left_(step.count) {}

  Next<T> next() override {
    while (static_cast<int64_t>(items_.size()) < size_ && !ended_) {
      TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, input_->next());
      ended_ = !item;
      if (item) items_.push_back(*std::move(item));
    }
    if (items_.empty()) return std::nullopt;
    if (is_counted()) --left_;
    return take_random(items_, random_);
  }
  Skipped skip(int64_t count) override {
    if (is_counted() && count >= left_) {
      items_.clear();
      ended_ = true;
      return std::exchange(left_, 0);
    }
    for (int64_t i = 0; i < count; ++i) {
      TRIREME_ASSIGN_OR_RETURN(const std::optional<T> item, next());
      if (!item) return i;
    }
    return count;
  }

 private:
  bool is_counted() const { return left_ != kEndless && left_ != kUnknownCount; }

  const int64_t size_;
  std::mt19937_64 random_;
  const StreamPtr<T> input_;
  int64_t left_;  // number of items to come, if it is known
  std::vector<T> items_;
  bool ended_ = false;
};

// Does the same for elements. The buffer holds their positions in the input, so that those that are
// skipped need not be made.
class ShuffledElements : public Stream<Element> {
 public:
  ShuffledElements(const DatasetStep& step, uint64_t key, StreamPtr<Element> input)
      : size_(step.def.shuffle().buffer()),
        count_(step.count),
        random_(shuffle_random(step, key)),
        input_(std::move(input)) {}

  absl::StatusOr<std::optional<Element>> next() override {
    fill();
    if (buffer_.empty()) return std::nullopt;
    TRIREME_RETURN_IF_ERROR(make_waiting());
    if (buffer_.empty()) return std::nullopt;
    return std::move(made_.extract(take_random(buffer_, random_)).mapped());
  }
  absl::StatusOr<int64_t> skip(int64_t count) override {
    const int64_t held = static_cast<int64_t>(buffer_.size());
    if (count_ != kEndless && count >= count_ - filled_ + held) {
      const int64_t filled = std::exchange(filled_, count_);
      buffer_.clear();
      made_.clear();
      waiting_.clear();
      return count_ - filled + held;
    }
    for (int64_t i = 0; i < count; ++i) {
      fill();
      const int64_t position = take_random(buffer_, random_);
      if (waiting_.erase(position) == 0) made_.erase(position);
    }
    return count;
  }

 private:
  void fill() {
    for (; static_cast<int64_t>(buffer_.size()) < size_ && filled_ < count_; ++filled_) {
      buffer_.push_back(filled_);
      waiting_.insert(filled_);
    }
  }
  // Makes the elements in the buffer that are not made yet.
  absl::Status make_waiting() {
    std::vector<int64_t> positions(waiting_.begin(), waiting_.end());
    std::sort(positions.begin(), positions.end());
    for (int64_t position : positions) {
      if (input_next_ < position) {
        TRIREME_RETURN_IF_ERROR(input_->skip(position - input_next_).status());
      }
      TRIREME_ASSIGN_OR_RETURN(std::optional<Element> element, input_->next());
      if (!element) {
        end_at(position);
        break;
      }
      made_.emplace(position, *std::move(element));
      input_next_ = position + 1;
    }
    waiting_.clear();
    return absl::OkStatus();
  }

  // Drops the positions from `end` on. The input has fewer elements than the step's count says if
  // it repeats files without records.
  void end_at(int64_t end) {
    count_ = filled_ = end;
    std::erase_if(buffer_, [end](int64_t position) { return position >= end; });
  }

  const int64_t size_;
  int64_t count_;  // number of elements of the input, or kEndless
  std::mt19937_64 random_;
  const StreamPtr<Element> input_;
  int64_t input_next_ = 0;                     // position of the input
  int64_t filled_ = 0;                         // positions below it have been in the buffer
  std::vector<int64_t> buffer_;                // positions of the elements to choose from
  std::unordered_map<int64_t, Element> made_;  // elements in the buffer, by position
  std::unordered_set<int64_t> waiting_;        // positions in the buffer without an element
};

// Returns true if the input of a shuffle of records has few of those of each block.
bool leaves_out_rows(const DatasetStep& shuffle) {
  for (const DatasetStep* step = shuffle.input.get(); step != nullptr; step = step->input.get()) {
    if (step->def.has_shuffle()) return false;  // it has copied them
    if (step->def.shard().count() > 1 || step->def.has_filter()) return true;
  }
  return false;
}

}  // namespace

StreamPtr<Row> make_shuffled(const DatasetStep& step, uint64_t key, StreamPtr<Row> input) {
  return std::make_unique<ShuffledItems<Row>>(step, key, std::move(input));
}

StreamPtr<BlockRow> make_shuffled(const DatasetStep& step, uint64_t key,
                                  StreamPtr<BlockRow> input) {
  if (leaves_out_rows(step)) input = open_gathered(std::move(input));
  return std::make_unique<ShuffledItems<BlockRow>>(step, key, std::move(input));
}

StreamPtr<Element> make_shuffled(const DatasetStep& step, uint64_t key, StreamPtr<Element> input) {
  if (step.count == kUnknownCount) {
    return std::make_unique<ShuffledItems<Element>>(step, key, std::move(input));
  }
  return std::make_unique<ShuffledElements>(step, key, std::move(input));
}

}  // namespace trireme::internal
