#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/usual_time.h"
#include "trireme/graph/plan.h"
#include "trireme/rpc/message.h"

namespace trireme::internal {

// A captured function as workers run it. Registered once with each worker that gets closures of it.
struct ClosureProgram {
  uint32_t id = 0;
  std::string function;
  std::shared_ptr<const Plan> plan;
  Message registration;       // RegisterProgramRequest
  std::vector<uint32_t> own;  // those of its variables that travel with each closure
  uint64_t answer_bytes = 0;

  // Of a closure on a worker. At first as long as a batch may last, so that the first ones run
  // alone.
  mutable UsualTime cost{std::chrono::milliseconds(1)};
};

using ClosureOutcome = absl::StatusOr<std::vector<at::Tensor>>;

// One call of a program, which some worker is to run. It changes variables once, however often it
// is run: servers know its pushes by its sequence.
struct Closure {
  std::shared_ptr<const ClosureProgram> program;
  std::vector<at::Tensor> tensors;  // inputs, then the program's own variables
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t sequence = 0;  // given by the queue
  // Of runs that failed because a parameter server did not do its part; used by who runs it.
  int server_failures = 0;

  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
    return bytes;
  }

 private:
  friend class ClosureQueue;
  std::optional<ClosureOutcome> outcome_;  // under the lock of the queue
};

using ClosurePtr = std::shared_ptr<Closure>;

}  // namespace trireme::internal
