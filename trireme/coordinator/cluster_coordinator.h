#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/coordinator/closure_argument.h"
#include "trireme/coordinator/native_function.h"
#include "trireme/coordinator/per_worker_values.h"
#include "trireme/coordinator/remote_value.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"
#include "trireme/data/sharding.h"
#include "trireme/function/function.h"
#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme {

// Options of a ClusterCoordinator.
struct ClusterCoordinatorOptions {
  // Maximum number of queued closures; schedule() blocks while the queue is full.
  size_t queue_size = 256 << 10;
  // Maximum number of closures that one worker runs concurrently if they both read and change
  // variables. A higher number hides the latency of the parameter servers, but trains on older
  // values.
  int updates_at_once = 1;
};

// Options of one closure: coordinator.schedule({.repeat = 10}, step, data.iterator()).
struct ClosureOptions {
  // Number of times that a worker runs the function in this closure, each time with the next
  // elements of its iterators. The closure's result is the result of the last run.
  int repeat = 1;
  // True if the closure's result is the sum of the results of its runs, tensor by tensor, which
  // must have the same shapes in all runs. If the data ends during a closure whose function draws
  // with next_optional(), the result is the sum of the runs that were completed.
  bool sum_results = false;
  // Time limit, measured from schedule(). A closure that exceeds it fails with DEADLINE_EXCEEDED.
  std::optional<std::chrono::nanoseconds> deadline = std::nullopt;
};

// Options of create_per_worker_dataset().
struct PerWorkerDatasetOptions {
  // Decides which part of the dataset each worker reads: kOff, or kDynamic. With kDynamic the
  // coordinator cuts the dataset into ranges, its files or some hundred consecutive elements, and
  // hands them to workers as they need them, so that slow workers take fewer. The steps of the
  // dataset run inside of each range: a batch or a shuffle has elements of one range only.
  Shard shard = Shard::kOff;
  // Number of times that each element is used with kDynamic; 0 for endless repetition. Each epoch
  // has another order if the dataset is shuffled. When all were used, closures find the end of the
  // data.
  int64_t epochs = 1;
};

// Progress of a coordinator, as join() reports it.
struct JoinProgress {
  // Number of closures that have succeeded, failed or been cancelled since the coordinator was
  // made.
  uint64_t done = 0;
  uint64_t left = 0;  // Number of closures that are queued or running.
};

// Options of join().
struct JoinOptions {
  // Time after which join() throws DEADLINE_EXCEEDED. The closures keep running, and join() may be
  // called again.
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
  // Called at intervals of `progress_every` by the thread that waits in join(). May throw to end
  // the wait.
  std::function<void(const JoinProgress&)> on_progress = nullptr;
  // Time between two calls of `on_progress`.
  std::chrono::nanoseconds progress_every = std::chrono::seconds(1);
};

// Thrown when a parameter server is lost, and with it the variables that it held. origin().task
// names the server.
class PsLost : public Error {
 public:
  // Takes the same arguments as Error.
  using Error::Error;
};

// Runs functions on the workers of a cluster asynchronously, and keeps going when workers die:
//
//   tr::ClusterCoordinator coordinator(strategy);
//   tr::RemoteValue loss;
//   for (int i = 0; i < 1000; ++i) loss = coordinator.schedule(step, x, y);
//   coordinator.join();
//   std::cout << coordinator.fetch(loss).item<float>();
//
// A closure is one call of a function. It runs at least once, but changes the variables of the
// strategy exactly once: the closures of a lost worker are requeued and run on other workers, and
// the parameter servers recognize and drop late updates of the lost worker. Results are returned to
// the coordinator as soon as they are available, so they survive the worker.
//
// The first error of a closure wins: all other closures are cancelled, and the next schedule(),
// join() or done() throws the error once. After that, closures can be scheduled again. If a
// parameter server is lost, its variables are lost too, and every later schedule(), join() and
// done() throws PsLost.
//
// Once join() has returned, done() has returned true, or one of these functions or fetch() has
// thrown an error of a closure, no update of an earlier closure is applied any more, not even by a
// worker that was frozen or cut off meanwhile. A parameter server that does not answer delays such
// a call by at most about the lease of the job, 3 s.
//
// Thread-safe. Remote values and per-worker values may outlive the coordinator.
class ClusterCoordinator {
  template <typename T>
  using Argument = std::type_identity_t<internal::ClosureArgument<std::decay_t<T>>>;

 public:
  // Begins to connect to the workers without waiting for them. Throws Error if the cluster has no
  // workers or a parameter server does not answer.
  explicit ClusterCoordinator(const ParameterServerStrategy& strategy,
                              const ClusterCoordinatorOptions& options = {});
  // Cancels the closures that are not done.
  ~ClusterCoordinator();

  // Queues a call of `function` and returns a handle for its result. Blocks only while the queue is
  // full, while one closure is not done and 8 million later ones were scheduled, or, after an
  // error, until the closures that run are cancelled. The first call with arguments of given shapes
  // and types captures the function.
  //
  // Tensors are not copied and must not change before the closure is done. Variables in the client
  // program's own memory, such as a learning rate, are sent with their current values; the function
  // must not change them. An argument may be a PerWorkerValues, which each worker replaces by its
  // own value:
  //
  //   coordinator.schedule(step, data.iterator());
  template <typename R, typename... Args>
  RemoteValue<R> schedule(const Function<R(Args...)>& function, Argument<Args>... args);
  // Does the same with options for this closure.
  template <typename R, typename... Args>
  RemoteValue<R> schedule(const ClosureOptions& options, const Function<R(Args...)>& function,
                          Argument<Args>... args);
  // Queues a call of a native function, which workers that run this program's binary find by name.
  template <typename R, typename... Args>
  RemoteValue<R> schedule(const NativeFunction<R(Args...)>& function,
                          std::type_identity_t<std::decay_t<Args>>... args);
  // Does the same with options for this closure.
  template <typename R, typename... Args>
  RemoteValue<R> schedule(const ClosureOptions& options, const NativeFunction<R(Args...)>& function,
                          std::type_identity_t<std::decay_t<Args>>... args);

  // Gives each worker the same dataset. Each worker iterates over it by itself, in its own order if
  // it is shuffled. A worker that was restarted continues after the elements of the closures that
  // have succeeded there. With Shard::kDynamic, all workers share the dataset instead, and each
  // element is used once in each epoch, whichever worker is lost.
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset,
                                             const PerWorkerDatasetOptions& options = {});
  // Does the same with the dataset that `dataset_function` returns for each worker. The function
  // runs in the client program, once for each worker, including workers that update_workers() adds
  // later.
  PerWorkerDataset create_per_worker_dataset(
      std::function<Dataset(const InputContext&)> dataset_function);
  // Gives each worker the tensor that `function` returns for it. The function runs in the client
  // program, as for a dataset.
  PerWorkerValues<at::Tensor> create_per_worker_tensor(
      std::function<at::Tensor(const InputContext&)> function);

  // Replaces the workers by those of `spec`. New workers get closures as soon as they are up. The
  // closures of removed workers are requeued. Throws Error if the parameter servers differ from the
  // strategy's, and rethrows what a dataset function throws; the workers are then unchanged.
  void update_workers(const ClusterSpec& spec);
  // Returns the state of each worker, ordered by task index.
  std::vector<WorkerState> workers() const;

  // Blocks until all closures are done. Throws the first error of a closure.
  void join(const JoinOptions& options = {});
  // Does the same, and throws DEADLINE_EXCEEDED when the time is over.
  void join(std::chrono::nanoseconds timeout) { join(JoinOptions{.timeout = timeout}); }
  // Returns true if no closure is queued or running. Throws as join() does.
  bool done();

  // Blocks until the result of a closure is available and returns it. Throws the closure's error,
  // or CANCELLED. Static, because results may outlive their coordinator.
  template <typename R>
  static R fetch(const RemoteValue<R>& value);
  // Fetches each element and returns a vector of the results. Structures may be nested: a vector of
  // maps of remote values becomes a vector of maps of results.
  template <typename T>
  static auto fetch(const std::vector<T>& values);
  // Fetches each value and returns a map of the results.
  template <typename K, typename T>
  static auto fetch(const std::map<K, T>& values);
  // Fetches each element and returns a tuple of the results.
  template <typename... Ts>
  static auto fetch(const std::tuple<Ts...>& values);
  // Fetches both elements and returns a pair of the results.
  template <typename T, typename U>
  static auto fetch(const std::pair<T, U>& values);

 private:
  // Throws a pending error, or INVALID_ARGUMENT for options that cannot be met. Called before
  // elements are drawn for the closure, so that a rejected call consumes none.
  void check_usable(const ClosureOptions& options, bool own_iterators);
  using Prepare = std::function<std::shared_ptr<const internal::FunctionStep>(internal::StandIns&)>;
  internal::PendingResult schedule_step(const ClosureOptions& options,
                                        const internal::FunctionStep& step);
  // `again` prepares the same call with other stand-ins.
  internal::PendingResult schedule_step(const ClosureOptions& options,
                                        const std::shared_ptr<const internal::FunctionStep>& step,
                                        const std::shared_ptr<const internal::StandIns>& stand_ins,
                                        Prepare again);
  internal::PendingResult schedule_native(const ClosureOptions& options, const std::string& name,
                                          std::vector<at::Tensor> tensors);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme

#include "trireme/coordinator/cluster_coordinator_inl.h"
