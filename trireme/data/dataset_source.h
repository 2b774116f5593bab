#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/data/dataset_step.h"
#include "trireme/data/element_reader.h"
#include "trireme/data/used_numbers.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Draws the elements of a dataset for an iterator: always the one with the smallest number that was
// not used. Makes draws of several threads follow each other; each element is drawn once.
// Thread-safe.
class DatasetSource : public ElementSource {
 public:
  // Begins at the first element.
  DatasetSource(DatasetStepPtr step, uint64_t seed);

  NumberedElement draw() override;
  void put_back(NumberedElement element) override;
  std::string name() const override { return name_; }

  // Returns the dataset in readable form.
  std::string describe() const;
  // Returns the position, which counts elements that were drawn and not put back as used. It
  // consists of counters only. To go there takes at most as long as shuffling the row numbers of
  // one repetition, since whole repetitions are skipped by arithmetic.
  absl::StatusOr<IteratorPosition> position() const;
  // Continues from a position of an iterator over the same dataset. No element that was drawn
  // before may be put back after it.
  absl::Status restore(const IteratorPosition& position);
  // Returns how often restore() has changed the position.
  uint64_t restores() const;

 private:
  const std::string name_;
  mutable Mutex mutex_;
  std::unique_ptr<ElementReader> reader_ ABSL_GUARDED_BY(mutex_);
  UsedNumbers used_ ABSL_GUARDED_BY(mutex_);
  uint64_t restores_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
