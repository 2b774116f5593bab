#pragma once

#include <cstdint>

#include "trireme/data/dataset.h"

// The data of checkpoint_client.cc, which its tests know too.
namespace trireme {

// Number of examples, which the workers share evenly.
inline constexpr int64_t kExamples = 400;
// Number of examples of a step. A worker's share has a whole number of steps.
inline constexpr int64_t kExamplesOfStep = 8;

// Returns the examples of one worker, as their numbers. Each repetition has every number once.
inline Dataset examples_of(int worker, int workers) {
  return Dataset::range(worker, kExamples, workers)
      .shuffle(kExamples / workers)
      .repeat()
      .batch(kExamplesOfStep);
}

}  // namespace trireme
