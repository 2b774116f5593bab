#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "trireme/distribute/step_runner.h"
#include "trireme/model/data_source.h"
#include "trireme/model/model_options.h"

namespace trireme::internal {

// Data that steps draw from, and how much of it there is.
struct OpenedData {
  std::shared_ptr<StepData> data;
  // Number of steps of an epoch; 0 if it ends with the data.
  int64_t steps = 0;
  // Number of steps that an epoch is expected to have; 0 if it is not known.
  int64_t expected_steps = 0;
  // True if each element is drawn once, by any worker. Otherwise each worker draws its own.
  bool shared = false;
};

// The data of a fit(), and that of its validation, which may be empty.
struct FitData {
  DataSource training, validation;
};

// Returns data of tensors with weights of their examples added. `call` is "fit" or "evaluate", for
// errors. Throws Error for weights of data that is not given as tensors.
DataSource with_weights(const DataSource& data, const at::Tensor& weights, const char* call);
// Holds out the last examples for the validation if the options say so. Throws Error if they say so
// for data that is not given as tensors.
FitData divide(const DataSource& data, const FitOptions& options);

// Opens the data of a fit(), from which each step draws `batches_per_step` batches. Throws Error if
// the length of an epoch is not known.
OpenedData open_training(StepRunner& runner, const DataSource& data, const FitOptions& options,
                         int64_t batches_per_step);
// Opens data of which each example is used once, or `steps` batches. Throws Error if there would be
// no end.
OpenedData open_evaluation(StepRunner& runner, const DataSource& data, int64_t batch_size,
                           std::optional<int64_t> steps, const char* option);

}  // namespace trireme::internal
