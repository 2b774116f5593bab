#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/coordinator/remote_value.h"
#include "trireme/graph/function.h"
#include "trireme/strategy/parameter_server_strategy.h"

namespace trireme {

struct ClusterCoordinatorOptions {
  size_t queue_size = 256 << 10;  // of closures that wait; schedule() blocks beyond
  // How many closures that both read and change variables a worker runs at once. More hide the way
  // to the parameter servers, and train on older values.
  int updates_at_once = 1;
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
 public:
  explicit ClusterCoordinator(const ParameterServerStrategy& strategy,
                              const ClusterCoordinatorOptions& options = {});
  ~ClusterCoordinator();  // cancels what is not done

  // Returns at once, unless the queue is full; the first call for such arguments captures the
  // function. Tensors are not copied: they must not change before the closure is done. Variables
  // of the program, such as a learning rate, travel with the closure as they are now; it may not
  // change them.
  template <typename R, typename... Args>
  RemoteValueOf<R> schedule(const Function<R(Args...)>& function,
                            std::type_identity_t<std::decay_t<Args>>... args) {
    check_usable();
    const auto step = function.prepare(std::move(args)...);
    return {schedule_step(*step), step->shape};
  }

  // Waits until all closures are done.
  void join();
  // Whether they are.
  bool done();

  // Waits for a result, and throws its closure's error, or CANCELLED.
  template <typename R>
  R fetch(const RemoteValueOf<R>& value) const {
    return value.get();
  }
  at::Tensor fetch(const RemoteValue& value) const { return value.tensor(); }
  template <typename R>
  std::vector<R> fetch(const std::vector<RemoteValueOf<R>>& values) const {
    std::vector<R> fetched;
    for (const auto& value : values) fetched.push_back(value.get());
    return fetched;
  }

 private:
  void check_usable() const;
  RemoteValue schedule_step(const internal::FunctionStep& step);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
