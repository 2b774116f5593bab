#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/dataset_creator.h"
#include "trireme/data/iterator.h"
#include "trireme/function/function.h"
#include "trireme/train/checkpointed.h"

namespace trireme::internal {

// A step: draws a batch with next_optional() and returns tensors that may be added up over steps.
using StepFunction = Function<std::vector<at::Tensor>(Iterator&)>;

// The data that steps draw from: an iterator in this program, or one on each worker.
class StepData {
 public:
  virtual ~StepData() = default;
  // Lets steps that are run from now on draw from the first elements again.
  virtual void restart() = 0;
  // Returns the object that stands for the position in a checkpoint.
  virtual Checkpointed position() const = 0;
};

// The sum of the results of some steps, which may not be there yet. Copies refer to the same sum.
class StepSums {
 public:
  // Takes a function that tells whether the sum is there, and one that waits for it.
  StepSums(std::function<bool()> ready, std::function<std::vector<at::Tensor>()> wait)
      : ready_(std::move(ready)), wait_(std::move(wait)) {}
  // Returns true if wait() does not block.
  bool ready() const { return ready_(); }
  // Returns the sums, tensor by tensor, over the steps that had data; empty if none had. Throws
  // Error if a step failed.
  std::vector<at::Tensor> wait() const { return wait_(); }

 private:
  std::function<bool()> ready_;
  std::function<std::vector<at::Tensor>()> wait_;
};

// Runs the steps of a model, as its strategy does. Not thread-safe.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Opens data that is different for each worker, as the function says. The data of one worker ends
  // by itself.
  virtual std::shared_ptr<StepData> open(const DatasetCreator& data) = 0;
  // Opens a dataset of which every element is drawn once in each epoch, by any worker, in `epochs`
  // epochs; 0 for endless epochs. batch() of the dataset must be its last step that joins elements.
  virtual std::shared_ptr<StepData> open_shared(const Dataset& data, int64_t epochs) = 0;

  // Runs a function `times` times, each with the next elements of the data. Blocks until it has run
  // if runs_here(), or else as long as too many steps are under way.
  virtual StepSums run(const StepFunction& function, const std::shared_ptr<StepData>& data,
                       int times) = 0;
  // Blocks until all steps are done. Throws the first error of a step.
  virtual void join() = 0;

  // Returns true if run() returns when the steps are done.
  virtual bool runs_here() const = 0;
  // Returns how many calls of run() keep all workers busy.
  virtual int64_t runs_at_once() const = 0;
  // Returns how often the only worker was lost. Steps that it ran were then run again, partly on
  // newer variables, so that their sums differ from those of an undisturbed run. Returns nullopt if
  // steps run here, or on several workers, whose order is not fixed anyway.
  virtual std::optional<int64_t> losses_of_only_worker() const { return std::nullopt; }
  // Returns the number of parts into which a batch of the training data is divided, one for each
  // replica. Returns 1 if there is one replica, or if each replica draws a batch of its own.
  virtual int parts_of_batch() const { return 1; }
  // Returns true if a dataset function makes different data for several workers, so that the length
  // of an epoch does not follow from the data.
  virtual bool needs_steps_per_epoch() const = 0;
};

}  // namespace trireme::internal
