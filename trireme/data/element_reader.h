#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "trireme/base/mutex.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/input_metrics.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Makes the elements of a dataset by their numbers. Fast if the numbers mostly ascend, also if
// several callers read ascending numbers in different places. Thread-safe.
class ElementReader {
 public:
  // Readers of equal steps with the same seed make the same elements. `metrics` may be null.
  ElementReader(DatasetStepPtr step, uint64_t seed,
                std::shared_ptr<InputMetrics> metrics = nullptr);

  // Makes the element with this number, or takes the one that was put back. Throws Error: with
  // END_OF_DATA if there are not that many, or if going there would take too long.
  Element take(uint64_t number);
  // Keeps an element, so that the next take() of its number need not make it again.
  void put_back(uint64_t number, Element element);

  // Returns a name for errors: "iterator over range(5)".
  const std::string& name() const { return name_; }
  const DatasetStepPtr& step() const { return step_; }
  uint64_t seed() const { return seed_; }

 private:
  // A stream and the number of its next element.
  struct Opened {
    std::unique_ptr<Stream<Element>> stream;
    uint64_t next = 0;
  };

  Element take_locked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes a stream that is close to the number, and not beyond it, the first one, and keeps the
  // elements in between. Returns false if there is none.
  bool move_close_to(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void keep(uint64_t number, Element element) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the next element of the first stream, after skipping those below `number`.
  Element make(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const DatasetStepPtr step_;
  const uint64_t seed_;
  const std::shared_ptr<InputMetrics> metrics_;
  const std::string name_;
  Mutex mutex_;
  std::list<Opened> streams_ ABSL_GUARDED_BY(mutex_);  // the one used last is the first
  std::map<uint64_t, Element> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
