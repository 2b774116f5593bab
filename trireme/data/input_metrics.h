#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "trireme/data/dataset_step.h"
#include "trireme/observe/metrics.h"

namespace trireme::internal {

// Shows where the time of a pipeline goes, in counters of its server or program:
//
//   input/NAME/elements      elements that were asked for
//   input/NAME/wait_us       time for which those who asked waited
//   input/NAME/bad_records   records that were left out, because they were not valid
//   input/NAME/NN KIND/us    time in step NN, including the steps before it
//
// NAME is the dataset in readable form. Steps that only pass rows on have no counter; their time is
// that of the next step. Iterators over datasets with the same name share the counters.
class InputMetrics {
 public:
  InputMetrics(Metrics& metrics, const DatasetStep& last);
  // Returns an object that counts for a part of the dataset: `last` has the same steps behind its
  // source, and counts together with the dataset's.
  std::shared_ptr<InputMetrics> for_part(const DatasetStep& last) const;

  // Counts an element that was asked for.
  void add_element(uint64_t waited_us) {
    elements_->add();
    wait_us_->add(waited_us);
  }
  // Returns the counter for records that were left out.
  Counter* bad_records() const { return bad_records_; }
  // Returns the counter for the time of a step, or null if it is not measured: one that passes rows
  // on, or one of the other inputs of a zip.
  Counter* time_of(const DatasetStep& step) const;

 private:
  InputMetrics() = default;

  Counter* elements_ = nullptr;
  Counter* wait_us_ = nullptr;
  Counter* bad_records_ = nullptr;
  std::vector<Counter*> times_;  // from the last step back to the source
  std::map<const DatasetStep*, Counter*> by_step_;
};

}  // namespace trireme::internal
