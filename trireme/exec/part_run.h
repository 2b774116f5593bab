#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/exec/node_runner.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// A value in transit between tasks, as dense tensors that the codec can encode. A dense value is
// one piece, flattened if it fills its memory without gaps. A sparse value is three pieces: its
// indices, its values, and a boolean that is true if it is coalesced.
using Pieces = std::vector<at::Tensor>;

// Connects a part to the parts of other tasks in the same step.
class Transfers {
 public:
  virtual ~Transfers() = default;
  // Returns the value that has arrived for a receive, given by its number in the graph. Returns
  // nullopt if it has not arrived yet: the run then stops, and its owner must call advance() again
  // once it has.
  virtual std::optional<Pieces> take(uint32_t receive) = 0;
  // Sends a value to another task. `send` is its number in the graph. The pieces are not written to
  // any more, so they may be sent without a copy.
  virtual void send(uint32_t send, Pieces pieces) = 0;
  // Called after the last send at one point of the order: sends that were held back to share a
  // call must go now.
  virtual void flush() = 0;
};

struct PartRunOptions {
  std::stop_token stop;  // cancels the run; checked before each operator
  // One lock per variable, held while an operator touches the variable. Empty if nothing else uses
  // the variables during the run.
  std::vector<SharedMutex*> locks;
  // Called before each operator that writes to a variable, while the locks are held. If it returns
  // an error, the operator does not run and the run ends with that error. Null allows all writes.
  std::function<absl::Status()> check_write = nullptr;
  // Called after that for each variable that the operator writes to, given by its index. May be
  // null.
  std::function<void(uint32_t variable)> before_write = nullptr;
  // Seeds the generators of accelerators together with the step's generator, so that each task
  // draws other numbers. 0 leaves it out.
  uint64_t device_seed = 0;
  Transfers* transfers = nullptr;  // must outlive the run; null if the part has no transfers
};

// One run of the part of a graph that one task executes, in captured order. It never blocks to wait
// for another task: advance() returns, and a later call, on any thread, continues. Not thread-safe:
// one call at a time.
class PartRun {
 public:
  PartRun(std::shared_ptr<const Plan> plan, std::vector<at::Tensor> variables,
          at::Generator generator, PartRunOptions options);

  // Sets the inputs of the part. Must be called once, before advance().
  absl::Status bind(const std::vector<at::Tensor>& inputs);

  enum class State {
    kDone,    // all operators have run and all sends are under way
    kWaiting  // the next operator needs a value that has not arrived
  };
  // Runs operators until the part is done or has to wait. After an error the run is over.
  absl::StatusOr<State> advance();
  // Returns the outputs of the part. Must be called after advance() has returned kDone.
  std::vector<at::Tensor> outputs();

  // Returns the number of the node that runs next.
  size_t next_node() const { return next_; }

 private:
  // Takes the values that a node waits for. Returns false if one has not arrived; the next call
  // continues with that one.
  absl::StatusOr<bool> receive(const NodePlan& node);
  // Sends the values that are due before the next node.
  absl::Status send_due();
  absl::Status execute(const NodePlan& node);

  const std::shared_ptr<const Plan> plan_;
  const std::vector<at::Tensor> variables_;
  const PartRunOptions options_;
  NodeRunner runner_;
  torch::jit::Stack stack_;
  size_t next_ = 0;          // the node that runs next
  size_t next_receive_ = 0;  // index into that node's `receives` of the first one not yet taken
  size_t next_send_ = 0;     // index into the plan's `sends`
};

}  // namespace trireme::internal
