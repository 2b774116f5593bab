#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace trireme::internal {

struct GraphData;  // graph/plan.h
struct Plan;

// The workers that train together, each of which runs the same program. All workers must make the
// same calls in the same order. Functions throw Error if they fail. Thread-safe.
class WorkerGroup {
 public:
  virtual ~WorkerGroup() = default;

  virtual int workers() const = 0;  // number of workers
  virtual int worker() const = 0;   // number of this worker, from 0
  // Returns the sum of a value over all workers; sparse if the value is sparse. Errors show `tag`.
  virtual at::Tensor sum(const at::Tensor& value, const std::string& tag) = 0;
  // Returns the value of worker 0.
  virtual at::Tensor first(const at::Tensor& value, const std::string& tag) = 0;
  // Returns the values of all workers, behind each other along dimension 0. They may differ in the
  // size of that dimension only.
  virtual at::Tensor concatenate(const at::Tensor& value, const std::string& tag) = 0;

  // Returns the graph of a step's plan with the operators below replaced by those that reach the
  // workers.
  virtual std::shared_ptr<const GraphData> connect(const Plan& plan) = 0;
  // Ends the group with an error, which the calls of all workers throw from then on.
  virtual void fail(const std::string& message) = 0;
};

// Names of the operators by which a captured graph asks for sums and values of other workers. They
// only copy their argument, so that the checks of a capture need no other worker. What runs the
// graph replaces them (WorkerGroup::connect).
inline constexpr char kSumOverWorkers[] = "trireme::sum_over_workers";
inline constexpr char kSumGradients[] = "trireme::sum_gradients_over_workers";
inline constexpr char kFirstOfWorkers[] = "trireme::first_of_workers";

// Returns true if the graph has one of these operators.
bool combines_over_workers(const GraphData& graph);

// Registers these operators with LibTorch, which the functions below do as well. Thread-safe.
void register_worker_values();

// Do the same as the functions of the group. In a function under capture they add the operator to
// the graph.
at::Tensor sum_over_workers(WorkerGroup& workers, const at::Tensor& value);
// Does the same with a gradient, which a group may send with fewer bits.
at::Tensor sum_gradients_over_workers(WorkerGroup& workers, const at::Tensor& gradient);
at::Tensor first_of_workers(WorkerGroup& workers, const at::Tensor& value);

}  // namespace trireme::internal
