#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/exec/node_runner.h"
#include "trireme/graph/plan.h"

namespace trireme::internal {

// A value as it crosses between tasks: dense tensors that the codec can carry. A dense value is one
// piece, laid out as its memory is; a sparse one is its indices, values and whether it is
// coalesced.
using Pieces = std::vector<at::Tensor>;

// What a part gets from other tasks and gives to them.
class Transfers {
 public:
  virtual ~Transfers() = default;
  // What has arrived for a receive, by its number in the graph. None yet: the run stops there, and
  // whoever runs it goes on once it has.
  virtual std::optional<Pieces> take(uint32_t receive) = 0;
  // `send` is its number in the graph. Nobody writes to the pieces any more.
  virtual void send(uint32_t send, Pieces pieces) = 0;
  // No further send follows at this point: what was kept to go together goes now.
  virtual void flush() = 0;
};

struct PartRunOptions {
  std::stop_token stop;  // checked before each operator
  // One for each variable: held while an operator touches it. Empty: nobody else uses them.
  std::vector<SharedMutex*> locks;
  Transfers* transfers = nullptr;
};

// One run of the part of a graph that one task has, in captured order. It can be left where it
// waits for another task and taken up again, on any thread.
class PartRun {
 public:
  PartRun(std::shared_ptr<const Plan> plan, std::vector<at::Tensor> variables,
          at::Generator generator, PartRunOptions options);

  absl::Status bind(const std::vector<at::Tensor>& inputs);

  enum class State { kDone, kWaiting };
  // Runs on as far as it can.
  absl::StatusOr<State> advance();
  // Once done.
  std::vector<at::Tensor> outputs();

  size_t next_node() const { return next_; }

 private:
  absl::StatusOr<bool> receive(const NodePlan& node);
  absl::Status send_due();
  void execute(const NodePlan& node);

  const std::shared_ptr<const Plan> plan_;
  const std::vector<at::Tensor> variables_;
  const PartRunOptions options_;
  NodeRunner runner_;
  torch::jit::Stack stack_;
  size_t next_ = 0, next_receive_ = 0, next_send_ = 0;
};

}  // namespace trireme::internal
