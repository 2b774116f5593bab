#include "trireme/data/open_stream.h"

#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/data/block_streams.h"
#include "trireme/data/cached.h"
#include "trireme/data/element_batches.h"
#include "trireme/data/generated.h"
#include "trireme/data/mapped.h"
#include "trireme/data/padded_batches.h"
#include "trireme/data/prefetched.h"
#include "trireme/data/rebatch_step.h"
#include "trireme/data/row_streams.h"
#include "trireme/data/shuffled_stream.h"
#include "trireme/data/simple_streams.h"
#include "trireme/data/zipped.h"
#include "trireme/exec/random.h"

// A stream pulls: next() of a step draws from the stream of the step before it, as often as it
// needs to. Streams are opened from the last step back to the source.
//
// Up to the first batch or map, elements of a source in memory are rows, and only their numbers
// pass through the steps (Stream<Row>). So a shuffle moves numbers, and a batch is a single view of
// the source, if its rows are consecutive, or a single gather. Records of files are rows of blocks
// in the same way (Stream<BlockRow>). After that, elements pass through the steps
// (Stream<Element>). Shuffle, repeat, take, skip, shard and filter work on all of them and are
// templates.
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

// Counts the time in a stream.
class TimedStream : public Stream<Element> {
 public:
  TimedStream(Counter& us, StreamPtr<Element> input) : us_(us), input_(std::move(input)) {}

  Next<Element> next() override {
    const Time begin = Clock::real().now();
    Next<Element> element = input_->next();
    us_.add(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::real().now() - begin).count());
    return element;
  }
  Skipped skip(int64_t count) override { return input_->skip(count); }

 private:
  Counter& us_;
  const StreamPtr<Element> input_;
};

// Opens the streams of one iterator. Shared by them, since a repeat opens its input again and
// again.
class StreamOpener : public std::enable_shared_from_this<StreamOpener> {
 public:
  StreamOpener(uint64_t seed, std::shared_ptr<InputMetrics> metrics)
      : seed_(seed), metrics_(std::move(metrics)) {}

  // Opens the stream of a step. `key` differs for each repetition and decides, together with the
  // seeds of the steps, what is random.
  template <typename T>
  StreamPtr<T> open(const DatasetStepPtr& step, uint64_t key);

 private:
  template <typename T>
  StreamPtr<T> open_pass_through(const DatasetStepPtr& step, uint64_t key);
  StreamPtr<Element> open_elements(const DatasetStepPtr& step, uint64_t key);
  StreamPtr<Element> open_batch(const DatasetStepPtr& step, uint64_t key);
  template <typename T>
  Opener<T> opener(const DatasetStepPtr& step) {
    return [self = shared_from_this(), step](uint64_t key) { return self->open<T>(step, key); };
  }

  std::shared_ptr<CachedElements> cache_of(const DatasetStepPtr& step) {
    MutexLock lock(mutex_);
    std::shared_ptr<CachedElements>& kept = caches_[step.get()];
    if (kept == nullptr) kept = std::make_shared<CachedElements>();
    return kept;
  }

  Counter* bad_records() const { return metrics_ == nullptr ? nullptr : metrics_->bad_records(); }

  const uint64_t seed_;
  const std::shared_ptr<InputMetrics> metrics_;
  Mutex mutex_;  // repeats behind two prefetches open streams at the same time
  std::map<const DatasetStep*, std::shared_ptr<CachedElements>> caches_ ABSL_GUARDED_BY(mutex_);
};

DatasetStepPtr source_of(DatasetStepPtr step) {
  while (step->input != nullptr) step = step->input;
  return step;
}

// Returns what makes an element of an item of a step.
template <typename T>
std::function<Element(const T&)> to_element(const DatasetStepPtr& step) {
  if constexpr (std::is_same_v<T, Row>) {
    return [source = source_of(step)](const Row& row) { return element_of(*source, row); };
  } else if constexpr (std::is_same_v<T, BlockRow>) {
    return [](const BlockRow& row) { return element_of(row); };
  } else {
    return [](const Element& element) { return element; };
  }
}

// Opens the stream of a step that passes its items on unchanged.
template <typename T>
StreamPtr<T> StreamOpener::open_pass_through(const DatasetStepPtr& step, uint64_t key) {
  const proto::DatasetStep& def = step->def;
  if (def.has_repeat()) return std::make_unique<Repeated<T>>(step, key, opener<T>(step->input));
  StreamPtr<T> input = open<T>(step->input, key);
  if (def.has_shuffle()) return make_shuffled(*step, key, std::move(input));
  if (def.has_take()) return std::make_unique<Taken<T>>(def.take().count(), std::move(input));
  if (def.has_shard()) {
    return std::make_unique<Sharded<T>>(def.shard().count(), def.shard().index(), std::move(input));
  }
  if (def.has_filter()) {
    return std::make_unique<Filtered<T>>(step, key, std::move(input), to_element<T>(step->input));
  }
  return std::make_unique<WithoutFirst<T>>(def.skip().count(), std::move(input));
}

template <>
StreamPtr<Row> StreamOpener::open<Row>(const DatasetStepPtr& step, uint64_t key) {
  if (step->input == nullptr) return open_rows(step->count);
  return open_pass_through<Row>(step, key);
}

template <>
StreamPtr<BlockRow> StreamOpener::open<BlockRow>(const DatasetStepPtr& step, uint64_t key) {
  if (step->input == nullptr) return open_file_rows(step, bad_records());
  if (step->def.has_interleave()) {
    return open_interleaved(step->input, step->def.interleave().cycle(),
                            step->def.interleave().block_length(), bad_records());
  }
  return open_pass_through<BlockRow>(step, key);
}

template <>
StreamPtr<Element> StreamOpener::open<Element>(const DatasetStepPtr& step, uint64_t key) {
  switch (step->items) {
    case Items::kRows:
      return open_row_elements(source_of(step), open<Row>(step, key));
    case Items::kBlockRows:
      return open_block_elements(open<BlockRow>(step, key));
    case Items::kElements:
      break;
  }
  StreamPtr<Element> stream = open_elements(step, key);
  Counter* const time = metrics_ == nullptr ? nullptr : metrics_->time_of(*step);
  if (time == nullptr) return stream;
  return std::make_unique<TimedStream>(*time, std::move(stream));
}

StreamPtr<Element> StreamOpener::open_batch(const DatasetStepPtr& step, uint64_t key) {
  const BatchSize batch{step->def.batch().size(), step->def.batch().drop_remainder()};
  switch (step->input->items) {
    case Items::kRows:
      return open_row_batches(source_of(step), batch, open<Row>(step->input, key));
    case Items::kBlockRows:
      return open_block_batches(batch, open<BlockRow>(step->input, key));
    case Items::kElements:
      break;
  }
  return open_batches(batch, open<Element>(step->input, key));
}

StreamPtr<Element> StreamOpener::open_elements(const DatasetStepPtr& step, uint64_t key) {
  switch (step->def.kind_case()) {
    case proto::DatasetStep::kGenerator:
      return open_generated(step, key);
    case proto::DatasetStep::kBatch:
      return open_batch(step, key);
    case proto::DatasetStep::kPaddedBatch:
      return open_padded_batches(step, open<Element>(step->input, key));
    case proto::DatasetStep::kMap:
      return open_mapped(step, key, open<Element>(step->input, key));
    case proto::DatasetStep::kZip: {
      std::vector<StreamPtr<Element>> inputs;
      inputs.push_back(open<Element>(step->input, key));
      for (const DatasetStepPtr& other : step->others) {
        inputs.push_back(open<Element>(other, key));
      }
      return std::make_unique<Zipped>(std::move(inputs));
    }
    case proto::DatasetStep::kConcatenate:
      return std::make_unique<Concatenated<Element>>(open<Element>(step->input, key),
                                                     open<Element>(step->others[0], key));
    case proto::DatasetStep::kCache:
      // With the seed of the iterator, so that it does not matter which repetition comes first.
      return open_cached(cache_of(step), seed_, opener<Element>(step->input));
    case proto::DatasetStep::kRebatch:
      return make_rebatched(step, open<Element>(step->input, key));
    case proto::DatasetStep::kPrefetch:
      return open_prefetched(step->def.prefetch().count(), open<Element>(step->input, key));
    default:
      return open_pass_through<Element>(step, key);
  }
}

}  // namespace

StreamPtr<Element> open_stream(const DatasetStepPtr& step, uint64_t seed,
                               std::shared_ptr<InputMetrics> metrics) {
  return std::make_shared<StreamOpener>(seed, std::move(metrics))->open<Element>(step, seed);
}

}  // namespace trireme::internal
