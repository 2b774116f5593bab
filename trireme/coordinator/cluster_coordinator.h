#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

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
#include "trireme/coordinator/native_function.h"
#include "trireme/coordinator/per_worker_values.h"
#include "trireme/coordinator/remote_value.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/data/dataset.h"
#include "trireme/data/input_context.h"
#include "trireme/function/function.h"
#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme {

struct ClusterCoordinatorOptions {
  size_t queue_size = 256 << 10;  // of closures that wait; schedule() blocks beyond
  // How many closures that both read and change variables a worker runs at once. More hide the way
  // to the parameter servers, and train on older values.
  int updates_at_once = 1;
};

struct ClosureOptions {
  // How often a worker runs the function in this one closure, each time with the next elements of
  // its iterators. The result is that of the last time.
  int repeat = 1;
  // Within which it must be done, from now on; else it fails with DEADLINE_EXCEEDED.
  std::optional<std::chrono::nanoseconds> deadline = std::nullopt;
};

struct JoinProgress {
  uint64_t done = 0;  // closures that this coordinator has done, of all that it was ever given
  uint64_t left = 0;
};

struct JoinOptions {
  // Throws DEADLINE_EXCEEDED after so long; the closures go on, and join() may be called again.
  std::optional<std::chrono::nanoseconds> timeout = std::nullopt;
  // Called by the thread that waits, every so often.
  std::function<void(const JoinProgress&)> on_progress = nullptr;
  std::chrono::nanoseconds progress_every = std::chrono::seconds(1);
};

// A parameter server is gone, and the variables on it: origin().task names it.
class PsLost : public Error {
 public:
  using Error::Error;
};

// Runs functions on the workers of a cluster, asynchronously, and goes on when workers die:
//
//   tr::ClusterCoordinator coordinator(strategy);
//   tr::RemoteValue loss;
//   for (int i = 0; i < 1000; ++i) loss = coordinator.schedule(step, x, y);
//   coordinator.join();
//   std::cout << coordinator.fetch(loss).item<float>();
//
// A closure, one call of a function, runs at least once, and what it does to the variables of the
// strategy is done once: a worker that is lost gives its closures back, others run them, and a late
// update of the lost one is known and dropped. Results come home as soon as they are there.
//
// The first error of a closure wins: the others are cancelled, and the next schedule(), join() or
// done() throws it, once; then scheduling works again. When a parameter server is lost, variables
// are: schedule(), join() and done() throw PsLost from then on. Thread-safe.
class ClusterCoordinator {
  template <typename T>
  using Argument = std::type_identity_t<internal::ClosureArgument<std::decay_t<T>>>;

 public:
  explicit ClusterCoordinator(const ParameterServerStrategy& strategy,
                              const ClusterCoordinatorOptions& options = {});
  ~ClusterCoordinator();  // cancels what is not done

  // Returns at once, unless the queue is full; the first call for such arguments captures the
  // function. Tensors are not copied: they must not change before the closure is done. Variables
  // of the program, such as a learning rate, travel with the closure as they are now; it may not
  // change them. An argument may be one of PerWorkerValues.
  template <typename R, typename... Args>
  RemoteValueOf<R> schedule(const Function<R(Args...)>& function, Argument<Args>... args) {
    return schedule(ClosureOptions(), function, std::move(args)...);
  }
  template <typename R, typename... Args>
  RemoteValueOf<R> schedule(const ClosureOptions& options, const Function<R(Args...)>& function,
                            Argument<Args>... args) {
    check_usable(options, (args.is_own_iterator() || ...));
    if (!(args.is_per_worker() || ...)) {
      return RemoteValueOf<R>(schedule_step(options, *function.prepare(args.value()...)));
    }
    using Values = std::tuple<std::decay_t<Args>...>;
    // In braces, so that they are made in their order.
    const auto values = [](internal::StandIns& stand_ins, const auto&... given) {
      return Values{given.value(stand_ins)...};
    };
    auto stand_ins = std::make_shared<internal::StandIns>();
    const auto step = std::apply([&](auto&&... each) { return function.prepare(each...); },
                                 values(*stand_ins, args...));
    return RemoteValueOf<R>(
        schedule_step(options, step, stand_ins,
                      [function, values, ... args = std::move(args),
                       grad_mode = c10::GradMode::is_enabled()](internal::StandIns& others) {
                        const c10::AutoGradMode as_it_was(grad_mode);
                        return std::apply([&](auto&&... each) { return function.preview(each...); },
                                          values(others, args...));
                      }));
  }
  // A function that workers have by its name, as they run this program's binary.
  template <typename R, typename... Args>
  RemoteValueOf<R> schedule(const NativeFunction<R(Args...)>& function,
                            std::type_identity_t<std::decay_t<Args>>... args) {
    return schedule(ClosureOptions(), function, std::move(args)...);
  }
  template <typename R, typename... Args>
  RemoteValueOf<R> schedule(const ClosureOptions& options,
                            const NativeFunction<R(Args...)>& function,
                            std::type_identity_t<std::decay_t<Args>>... args) {
    check_usable(options, /*own_iterators=*/false);
    return RemoteValueOf<R>(schedule_native(options, function.name(), {std::move(args)...}));
  }

  // A dataset for each worker: the same, or what the function makes for it. The function is called
  // here, once for each worker, also for such as are added later; the iterator is on the worker. A
  // worker that was replaced begins anew.
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset);
  PerWorkerDataset create_per_worker_dataset(
      std::function<Dataset(const InputContext&)> dataset_function);
  // A tensor for each worker, which the function makes for it.
  PerWorkerValues<at::Tensor> create_per_worker_tensor(
      std::function<at::Tensor(const InputContext&)> function);

  // The workers are those of this spec from now on: new ones get closures as soon as they are up,
  // and who is not in it any more gives its closures to the others. The other jobs must be as they
  // were.
  void update_workers(const ClusterSpec& spec);
  std::vector<WorkerState> workers() const;

  // Waits until all closures are done.
  void join(const JoinOptions& options = {});
  void join(std::chrono::nanoseconds timeout) { join(JoinOptions{.timeout = timeout}); }
  // Whether they are.
  bool done();

  // Waits for a result, and throws its closure's error, or CANCELLED. Also for vectors, pairs,
  // tuples and maps of remote values, and of such.
  template <typename R>
  R fetch(const RemoteValueOf<R>& value) const {
    return value.get();
  }
  at::Tensor fetch(const RemoteValue& value) const { return value.tensor(); }
  template <typename T>
  auto fetch(const std::vector<T>& values) const {
    std::vector<decltype(this->fetch(values[0]))> fetched;
    for (const T& value : values) fetched.push_back(fetch(value));
    return fetched;
  }
  template <typename K, typename T>
  auto fetch(const std::map<K, T>& values) const {
    std::map<K, decltype(this->fetch(values.begin()->second))> fetched;
    for (const auto& [key, value] : values) fetched.emplace(key, fetch(value));
    return fetched;
  }
  template <typename... Ts>
  auto fetch(const std::tuple<Ts...>& values) const {
    return std::apply([this](const auto&... each) { return std::tuple{this->fetch(each)...}; },
                      values);
  }
  template <typename T, typename U>
  auto fetch(const std::pair<T, U>& values) const {
    return std::pair{fetch(values.first), fetch(values.second)};
  }

 private:
  // Throws what is to be raised, and if a closure cannot be such, before elements are drawn for it.
  void check_usable(const ClosureOptions& options, bool own_iterators);
  using Prepare = std::function<std::shared_ptr<const internal::FunctionStep>(internal::StandIns&)>;
  RemoteValue schedule_step(const ClosureOptions& options, const internal::FunctionStep& step);
  // `again`: the same call with other stand-ins.
  RemoteValue schedule_step(const ClosureOptions& options,
                            const std::shared_ptr<const internal::FunctionStep>& step,
                            const std::shared_ptr<const internal::StandIns>& stand_ins,
                            Prepare again);
  RemoteValue schedule_native(const ClosureOptions& options, const std::string& name,
                              std::vector<at::Tensor> tensors);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
