#include "trireme/data/open_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/shuffled_stream.h"
#include "trireme/exec/random.h"
#include "trireme/exec/replay.h"
#include "trireme/exec/step_generator.h"

// A stream pulls: next() of a step draws from the stream of the step before it, as often as it
// needs to. Streams are opened from the last step back to the source.
//
// Up to the first batch or map, elements are rows of the source, and only their numbers pass
// through the steps (Stream<Row>). So a shuffle moves numbers, and a batch is a single view of the
// source, if its rows are consecutive, or a single gather. After that, elements pass through the
// steps (Stream<Element>). Shuffle, repeat, take and skip work on both and are templates.
//
// skip() lets an iterator continue where another one was. Row numbers are added up, repetitions are
// jumped over, and maps only count. A shuffle has to repeat its random draws, but only those of the
// current repetition, and a shuffle of elements makes only those that stay in its buffer.
//
// Random decisions follow from seeds alone. A stream is opened with a key, which is the seed of the
// iterator, combined with the number of the repetition by each repeat() above. A shuffle or map
// combines the key with its own seed. So each repetition is shuffled differently, and a second
// iterator with the same seed repeats all of them.
namespace trireme::internal {
namespace {

using Row = int64_t;
template <typename T>
using Next = absl::StatusOr<std::optional<T>>;
using Skipped = absl::StatusOr<int64_t>;

// Opens the stream of a step. `key` differs for each repetition and decides, together with the
// seeds of the steps, what is random.
template <typename T>
std::unique_ptr<Stream<T>> open(const DatasetStepPtr& step, uint64_t key);

int64_t value_of(const proto::DatasetStep::Range& range, Row row) {
  return range.begin() + row * range.step();
}

Element element_of(const DatasetStep& source, Row row) {
  if (source.def.has_range()) {
    return {at::scalar_tensor(value_of(source.def.range(), row), at::kLong)};
  }
  Element element;
  for (const at::Tensor& tensor : source.tensors) element.push_back(tensor.select(0, row));
  return element;
}

bool are_consecutive(const std::vector<Row>& rows) {
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] != rows[i - 1] + 1) return false;
  }
  return true;
}

// Returns a batch of rows of the source. Rows that are consecutive are not copied.
Element batch_of(const DatasetStep& source, std::vector<Row>& rows) {
  const auto size = static_cast<int64_t>(rows.size());
  if (source.def.has_range()) {
    at::Tensor batch = at::empty({size}, at::kLong);
    int64_t* next = batch.mutable_data_ptr<int64_t>();
    for (Row row : rows) *next++ = value_of(source.def.range(), row);
    return {std::move(batch)};
  }
  const bool consecutive = are_consecutive(rows);
  const at::Tensor index = at::from_blob(rows.data(), {size}, at::kLong);
  Element batch;
  for (const at::Tensor& tensor : source.tensors) {
    batch.push_back(consecutive ? tensor.narrow(0, rows[0], size)
                                : at::index_select(tensor, 0, index));
  }
  return batch;
}

// Gives the row numbers of a source.
class Rows : public Stream<Row> {
 public:
  explicit Rows(int64_t count) : count_(count) {}

  Next<Row> next() override { return next_ < count_ ? std::optional<Row>(next_++) : std::nullopt; }
  Skipped skip(int64_t count) override {
    const int64_t skipped = std::min(count, count_ - next_);
    next_ += skipped;
    return skipped;
  }

 private:
  const int64_t count_;
  Row next_ = 0;
};

// Gives the rows with the numbers that it draws.
class RowElements : public Stream<Element> {
 public:
  RowElements(DatasetStepPtr source, std::unique_ptr<Stream<Row>> rows)
      : source_(std::move(source)), rows_(std::move(rows)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::optional<Row> row, rows_->next());
    return row ? std::optional<Element>(element_of(*source_, *row)) : std::nullopt;
  }
  Skipped skip(int64_t count) override { return rows_->skip(count); }

 private:
  const DatasetStepPtr source_;
  const std::unique_ptr<Stream<Row>> rows_;
};

// Draws the items of a batch. Returns fewer than its size at the end of the input, and none if the
// remainder is to be dropped.
template <typename T>
absl::StatusOr<std::vector<T>> take_batch(Stream<T>& input,
                                          const proto::DatasetStep::Batch& batch) {
  std::vector<T> items;
  while (static_cast<int64_t>(items.size()) < batch.size()) {
    TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, input.next());
    if (!item) {
      if (batch.drop_remainder()) items.clear();
      break;
    }
    items.push_back(*std::move(item));
  }
  return items;
}

// Skips the items of batches. Returns the number of batches.
template <typename T>
Skipped skip_batches(Stream<T>& input, const proto::DatasetStep::Batch& batch, int64_t count) {
  int64_t wanted;
  if (__builtin_mul_overflow(count, batch.size(), &wanted)) wanted = kEndless;
  TRIREME_ASSIGN_OR_RETURN(const int64_t items, input.skip(wanted));
  const bool has_remainder = items % batch.size() != 0 && !batch.drop_remainder();
  return items / batch.size() + (has_remainder ? 1 : 0);
}

// Batches rows by their numbers.
class RowBatches : public Stream<Element> {
 public:
  RowBatches(DatasetStepPtr step, DatasetStepPtr source, std::unique_ptr<Stream<Row>> rows)
      : step_(std::move(step)), source_(std::move(source)), rows_(std::move(rows)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(std::vector<Row> rows, take_batch(*rows_, step_->def.batch()));
    if (rows.empty()) return std::nullopt;
    return batch_of(*source_, rows);
  }
  Skipped skip(int64_t count) override { return skip_batches(*rows_, step_->def.batch(), count); }

 private:
  const DatasetStepPtr step_, source_;
  const std::unique_ptr<Stream<Row>> rows_;
};

// Batches elements that are not rows of the source.
class Batches : public Stream<Element> {
 public:
  Batches(DatasetStepPtr step, std::unique_ptr<Stream<Element>> input)
      : step_(std::move(step)), input_(std::move(input)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const auto elements, take_batch(*input_, step_->def.batch()));
    if (elements.empty()) return std::nullopt;
    Element batch;
    for (size_t i = 0; i < elements[0].size(); ++i) {
      std::vector<at::Tensor> tensors;
      for (const Element& element : elements) tensors.push_back(element[i]);
      batch.push_back(at::stack(tensors));
    }
    return batch;
  }
  Skipped skip(int64_t count) override { return skip_batches(*input_, step_->def.batch(), count); }

 private:
  const DatasetStepPtr step_;
  const std::unique_ptr<Stream<Element>> input_;
};

// Runs the graph of a map on each element. There is one graph for each shape of the input.
class Mapped : public Stream<Element> {
 public:
  Mapped(DatasetStepPtr step, std::unique_ptr<Stream<Element>> input, uint64_t key)
      : step_(std::move(step)),
        input_(std::move(input)),
        seed_(step_seed(step_->def.map().seed(), key)) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(const std::optional<Element> element, input_->next());
    if (!element) return std::nullopt;
    TRIREME_ASSIGN_OR_RETURN(const Plan* plan, plan_for(spec_of(*element)));
    at::Generator generator;
    if (plan->graph->def.random()) generator = make_step_generator(seed_, number_);
    ++number_;
    ReplayOptions options;
    options.tuner = &tuners_[plan];
    TRIREME_ASSIGN_OR_RETURN(Element mapped,
                             replay(*plan, *element, {}, std::move(generator), options));
    // The steps after this one rely on the shapes that the graph declares and on contiguous memory.
    // The graph may come from a peer, so its results are compared with the declaration.
    const ElementSpec spec = spec_of(mapped);
    if (std::find(step_->specs.begin(), step_->specs.end(), spec) == step_->specs.end()) {
      return map_error(absl::StrCat("its function returned ", to_string(spec),
                                    ", which differs from the types that its graph declares"));
    }
    for (at::Tensor& tensor : mapped) tensor = tensor.contiguous();
    return mapped;
  }
  Skipped skip(int64_t count) override {
    TRIREME_ASSIGN_OR_RETURN(const int64_t skipped, input_->skip(count));
    number_ += skipped;
    return skipped;
  }

 private:
  absl::StatusOr<const Plan*> plan_for(const ElementSpec& spec) const {
    const auto& specs = step_->input->specs;
    const auto found = std::find(specs.begin(), specs.end(), spec);
    if (found == specs.end())
      return map_error(absl::StrCat("it has no graph for ", to_string(spec)));
    return step_->plans[found - specs.begin()].get();
  }

  absl::Status map_error(std::string message) const {
    return make_status(ErrorCode::kInvalidArgument, std::move(message),
                       {"", absl::StrCat("dataset step ", step_->number, " 'map'")});
  }

  const DatasetStepPtr step_;
  const std::unique_ptr<Stream<Element>> input_;
  const uint64_t seed_;
  uint64_t number_ = 0;  // number of the next element; seeds its random numbers
  std::map<const Plan*, BranchTuner> tuners_;
};

// Opens its input again for each repetition, with a key for that repetition.
template <typename T>
class Repeated : public Stream<T> {
 public:
  Repeated(DatasetStepPtr step, uint64_t key) : step_(std::move(step)), key_(key) {}

  Next<T> next() override {
    const int64_t count = step_->def.repeat().count();
    while (!ended_) {
      const bool fresh = input_ == nullptr;
      if (fresh) {
        ended_ = repetition_ == count;
        if (ended_) break;
        input_ = open<T>(step_->input, step_seed(key_, repetition_++));
      }
      TRIREME_ASSIGN_OR_RETURN(std::optional<T> item, input_->next());
      if (item) return item;
      input_.reset();
      ended_ = fresh;  // an empty input would be repeated for ever without giving an item
    }
    return std::nullopt;
  }
  Skipped skip(int64_t count) override {
    int64_t skipped = 0;
    while (skipped < count && !ended_) {
      if (input_ == nullptr) {
        skipped += jump(count - skipped);
        if (skipped == count) break;
        ended_ = repetition_ == step_->def.repeat().count();
        if (ended_) break;
        input_ = open<T>(step_->input, step_seed(key_, repetition_++));
      }
      TRIREME_ASSIGN_OR_RETURN(const int64_t items, input_->skip(count - skipped));
      skipped += items;
      if (skipped == count) break;
      input_.reset();
      ended_ = step_->input->count == 0;
    }
    return skipped;
  }

 private:
  // Skips whole repetitions, at most `count` items. Returns the number of items.
  int64_t jump(int64_t count) {
    const int64_t size = step_->input->count;
    if (size == 0 || size == kEndless) return 0;
    const int64_t left = step_->def.repeat().count() - repetition_;
    const int64_t repetitions = std::min(count / size, left);
    repetition_ += repetitions;
    return repetitions * size;
  }

  const DatasetStepPtr step_;
  const uint64_t key_;
  int64_t repetition_ = 0;  // number of the next repetition to be opened
  std::unique_ptr<Stream<T>> input_;
  bool ended_ = false;
};

// Gives the first items.
template <typename T>
class Taken : public Stream<T> {
 public:
  Taken(int64_t count, std::unique_ptr<Stream<T>> input) : left_(count), input_(std::move(input)) {}

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
  const std::unique_ptr<Stream<T>> input_;
};

// Gives all items but the first ones, which it skips when it is first asked.
template <typename T>
class WithoutFirst : public Stream<T> {
 public:
  WithoutFirst(int64_t count, std::unique_ptr<Stream<T>> input)
      : left_(count), input_(std::move(input)) {}

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
  const std::unique_ptr<Stream<T>> input_;
};

// Opens the stream of a step that passes its items on unchanged, be they elements or row numbers.
template <typename T>
std::unique_ptr<Stream<T>> open_pass_through(const DatasetStepPtr& step, uint64_t key) {
  const proto::DatasetStep& def = step->def;
  if (def.has_shuffle()) return make_shuffled(*step, key, open<T>(step->input, key));
  if (def.has_repeat()) return std::make_unique<Repeated<T>>(step, key);
  auto input = open<T>(step->input, key);
  if (def.has_take()) return std::make_unique<Taken<T>>(def.take().count(), std::move(input));
  return std::make_unique<WithoutFirst<T>>(def.skip().count(), std::move(input));
}

template <>
std::unique_ptr<Stream<Row>> open<Row>(const DatasetStepPtr& step, uint64_t key) {
  if (step->input == nullptr) return std::make_unique<Rows>(step->count);
  return open_pass_through<Row>(step, key);
}

DatasetStepPtr source_of(DatasetStepPtr step) {
  while (step->input != nullptr) step = step->input;
  return step;
}

template <>
std::unique_ptr<Stream<Element>> open<Element>(const DatasetStepPtr& step, uint64_t key) {
  if (step->yields_rows)
    return std::make_unique<RowElements>(source_of(step), open<Row>(step, key));
  if (step->def.has_batch() && step->input->yields_rows) {
    return std::make_unique<RowBatches>(step, source_of(step), open<Row>(step->input, key));
  }
  if (step->def.has_batch()) {
    return std::make_unique<Batches>(step, open<Element>(step->input, key));
  }
  if (step->def.has_map()) {
    return std::make_unique<Mapped>(step, open<Element>(step->input, key), key);
  }
  return open_pass_through<Element>(step, key);
}

}  // namespace

std::unique_ptr<Stream<Element>> open_stream(const DatasetStepPtr& step, uint64_t seed) {
  return open<Element>(step, seed);
}

}  // namespace trireme::internal
