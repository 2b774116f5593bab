#include "trireme/data/made_ahead.h"

#include <ATen/Parallel.h>

#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/tensor/operator_threads.h"

// The threads draw from the input in turns and number what they draw. Each maps its element without
// a lock and stores the result under its number; next() takes the results by number. A thread waits
// while enough elements are made. drawing_ is locked before mutex_.
//
// After an error of the input the threads end, because nobody knows yet if the consumer goes on.
// Its next call after that error starts them again, as it does after skip().
namespace trireme::internal {
namespace {

// Calls a function that returns a StatusOr. Its exceptions become errors.
template <typename F>
std::invoke_result_t<F> call_and_catch(F&& function) {
  std::invoke_result_t<F> result;
  const absl::Status status = try_call([&] { result = function(); });
  return status.ok() ? std::move(result) : status;
}

class MadeAhead : public Stream<Element> {
 public:
  MadeAhead(AheadOptions options, StreamPtr<Element> input, NumberedMap map)
      : options_(std::move(options)), input_(std::move(input)), map_(std::move(map)) {}
  ~MadeAhead() override { stop(); }

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(std::optional<Made> made, take());
    if (!made) return std::nullopt;
    return std::move(made->element);
  }
  Skipped skip(int64_t count) override {
    // A few elements, which are in the making anyway, are not worth ending the threads.
    const bool runs = !threads_.empty() && count <= options_.elements;
    if (!runs) stop();
    int64_t skipped = 0;
    while (skipped < count && (runs || has_drawn())) {
      TRIREME_ASSIGN_OR_RETURN(const std::optional<Made> made, take());
      if (!made) return skipped;
      if (made->is_input_error) return made->element.status();
      ++skipped;
    }
    if (skipped == count || has_ended()) return skipped;
    TRIREME_ASSIGN_OR_RETURN(const int64_t items, input_->skip(count - skipped));
    MutexLock lock(mutex_);
    drawn_ += items;
    taken_ += items;
    ended_ = items < count - skipped;
    return skipped + items;
  }

 private:
  // An element or its error.
  struct Made {
    absl::StatusOr<Element> element;
    bool is_input_error = false;  // true if there was nothing to map
  };

  // Takes what was made next, or nullopt at the end.
  absl::StatusOr<std::optional<Made>> take() {
    TRIREME_RETURN_IF_ERROR(start_if_idle());
    MutexLock lock(mutex_);
    while (!made_.contains(taken_)) {
      if (ended_ && taken_ == drawn_) return std::nullopt;
      changed_.wait(mutex_);
    }
    Made made = std::move(made_.extract(taken_++).mapped());
    changed_.notify_all();
    return made;
  }
  // Return true if elements were drawn that are not taken, and if the input has ended.
  bool has_drawn() {
    MutexLock lock(mutex_);
    return drawn_ > taken_;
  }
  bool has_ended() {
    MutexLock lock(mutex_);
    return ended_;
  }

  // Starts the threads unless they run or have left something to take.
  absl::Status start_if_idle() {
    {
      MutexLock lock(mutex_);
      if (!stopping_ || ended_ || drawn_ > taken_) return absl::OkStatus();
    }
    stop();
    {
      MutexLock lock(mutex_);
      stopping_ = false;
    }
    // The number of threads of an operator decides how sums are split and thereby rounded.
    const int operator_threads = at::get_num_threads();
    try {
      for (int i = 0; i < options_.threads; ++i) {
        threads_.emplace_back([this, operator_threads] {
          set_thread_name(options_.thread_name);
          set_operator_threads(operator_threads);
          const SuspendDeviceCheck own;
          run();
        });
      }
    } catch (const std::system_error& error) {
      stop();
      return make_status(
          ErrorCode::kResourceExhausted,
          absl::StrCat("cannot start ", options_.threads,
                       " threads to make elements: ", error.what(), "; use fewer threads"));
    }
    return absl::OkStatus();
  }
  // Ends the threads. They complete the elements that they have drawn.
  void stop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void run() {
    int64_t number = 0;
    while (std::optional<Element> element = draw(number)) {
      absl::StatusOr<Element> made = map_ == nullptr ? *std::move(element) : call_and_catch([&] {
        return map_(*element, options_.first_number + static_cast<uint64_t>(number));
      });
      MutexLock lock(mutex_);
      made_.emplace(number, Made{std::move(made)});
      changed_.notify_all();
    }
  }
  // Draws an element from the input and sets its number. Returns nullopt if the thread must end.
  std::optional<Element> draw(int64_t& number) {
    MutexLock drawing(drawing_);
    {
      MutexLock lock(mutex_);
      while (!stopping_ && !ended_ && drawn_ - taken_ >= options_.elements) changed_.wait(mutex_);
      if (stopping_ || ended_) return std::nullopt;
    }
    Next<Element> element = call_and_catch([&] { return input_->next(); });
    MutexLock lock(mutex_);
    if (!element.ok()) {
      stopping_ = true;
      made_.emplace(drawn_++, Made{element.status(), true});
      changed_.notify_all();
      return std::nullopt;
    }
    if (element->has_value()) {
      number = drawn_++;
    } else {
      ended_ = true;
      changed_.notify_all();
    }
    return *std::move(element);
  }

  const AheadOptions options_;
  const StreamPtr<Element> input_;  // used under drawing_ while there are threads
  const NumberedMap map_;
  std::vector<std::thread> threads_;
  Mutex drawing_;
  Mutex mutex_;
  CondVar changed_;
  std::map<int64_t, Made> made_ ABSL_GUARDED_BY(mutex_);  // by number
  int64_t drawn_ ABSL_GUARDED_BY(mutex_) = 0;             // elements of the input that were drawn
  int64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;             // elements that the consumer has taken
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;            // true once the input has ended
  bool stopping_ ABSL_GUARDED_BY(mutex_) = true;          // true if threads must end
};

}  // namespace

StreamPtr<Element> open_made_ahead(AheadOptions options, StreamPtr<Element> input,
                                   NumberedMap map) {
  return std::make_unique<MadeAhead>(std::move(options), std::move(input), std::move(map));
}

}  // namespace trireme::internal
