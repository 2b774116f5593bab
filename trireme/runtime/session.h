#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/graph/graph.h"

namespace trireme {

struct SessionOptions {
  // Where its variables live on their tasks. Empty: they are the session's own and go with it.
  // Sessions that name the same container share variables by name, and these stay.
  std::string container;
  // Of the sessions that share a container one initialises its variables; the others wait until it
  // has.
  bool initializes = true;
  // A device that a task lacks is an error, instead of being replaced by one that it has.
  bool strict_placement = false;
  // Of each step, unless it says otherwise; also of what comes before the first.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  // A session whose program is not heard of for so long has ended.
  std::chrono::milliseconds lease = std::chrono::minutes(1);
  // The folder with this program's certificates; empty: none are used.
  std::string certs;
};

struct SessionStepOptions {
  std::chrono::milliseconds timeout = {};  // 0: the session's
  std::stop_token stop = {};               // cancels the step on all tasks
};

// Runs functions on the tasks of a cluster, through one of its servers:
//
//   tr::Session session("grpc://machine-b.example.com:2222");
//   torch::Tensor c = session.run([] { ... });
//
// Operators run where device scopes put them, on any number of tasks; what no scope places runs on
// the server that the session is with. Variables live on their tasks: one is made there when a
// step first uses it, from what the program holds of it. A task that was lost makes steps fail,
// with an error that names it; once it is back the session goes on, but its variables are gone,
// until initialize() makes them anew. Any number of threads may run steps at once.
class Session {
 public:
  explicit Session(const std::string& target, SessionOptions options = {});
  ~Session();  // closes it

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The server that it is with: "/job:worker/task:0".
  std::string master() const;

  // With a tr::function: captured once for each signature, then replayed.
  template <typename R, typename... Args>
  R run(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
    return run(SessionStepOptions{}, function, std::move(args)...);
  }
  template <typename R, typename... Args>
  R run(const SessionStepOptions& options, const Function<R(Args...)>& function,
        std::decay_t<Args>... args) {
    const auto step = function.prepare(std::move(args)...);
    return Function<R(Args...)>::assemble(*step, run_step(*step, options));
  }
  // With anything else that can be called: captured each time.
  template <typename F>
    requires std::is_invocable_v<F>
  auto run(const F& body) {
    return run(function("session.run", std::function<std::invoke_result_t<F>()>(body)));
  }

  // Many steps in flight: the result comes later. Its errors are thrown by get().
  template <typename R, typename... Args>
  std::future<R> start(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
    const auto step = function.prepare(std::move(args)...);
    auto promise = std::make_shared<std::promise<R>>();
    start_step(step, {},
               [step, promise](std::vector<at::Tensor> tensors, std::exception_ptr error) {
                 if (error) return promise->set_exception(error);
                 if constexpr (std::is_void_v<R>) {
                   promise->set_value();
                 } else {
                   promise->set_value(Function<R(Args...)>::assemble(*step, tensors));
                 }
               });
    return promise->get_future();
  }

  // The graph of such a call as it is placed: where each operator runs, and why. Runs no step.
  template <typename R, typename... Args>
  Graph graph(const Function<R(Args...)>& function, std::decay_t<Args>... args) {
    return placed_graph(*function.preview(std::move(args)...));
  }

  // Makes these variables again, from what the program holds of them, where they are gone: after
  // the loss of their task.
  void initialize(const std::vector<Variable>& variables);

 private:
  using OnStep = std::function<void(std::vector<at::Tensor>, std::exception_ptr)>;

  std::vector<at::Tensor> run_step(const internal::FunctionStep& step,
                                   const SessionStepOptions& options);
  void start_step(std::shared_ptr<const internal::FunctionStep> step,
                  const SessionStepOptions& options, OnStep done);
  Graph placed_graph(const internal::FunctionStep& step);

  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace trireme
