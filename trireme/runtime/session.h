#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/function/function.h"
#include "trireme/function/variable.h"
#include "trireme/graph/graph.h"
#include "trireme/runtime/session_options.h"

namespace trireme {

// Runs functions on the tasks of a cluster, through one of its servers, the session's master:
//
//   tr::Session session("grpc://machine-b.example.com:2222");
//   torch::Tensor c = session.run([] {
//     tr::DeviceScope on("/job:ps/task:0");
//     return torch::ones({2}) + 1;
//   });
//
// Operators run where device scopes place them, on any number of tasks; operators outside of all
// scopes run on the master.
//
// Variables live on their tasks: a variable is created there when a step first uses it, from the
// value that the program holds. From then on the contents are there. Variable::read() and assign()
// go to the session, and so does an optimizer's set_lr(). The memory in the program is stale, and
// code that uses it gets an error: a module's forward() outside of a captured function, a function
// that is called without the session, or torch::save. When the session is closed, its variables are
// deleted, and the value that the program held before the session counts again; read() what is
// still needed before that. Variables in a shared container (SessionOptions::container) stay there
// until the last session of their job is closed, and can be read while a session with that
// container holds them.
//
// When a task is lost, steps that need it fail with an error that names it. Once the task is back,
// the session continues to work, but the variables of the task are gone until initialize() is
// called.
//
// Errors are thrown as tr::Error, except those that LibTorch throws while a function is captured.
// Thread-safe: any number of threads may run steps at once.
class Session {
 public:
  // Opens a session at the server `target`, "grpc://HOST:PORT". Waits up to the session's timeout
  // for the server. With a shared container, also waits until it is decided whether earlier
  // programs of the job are alive, which takes three seconds at most.
  explicit Session(const std::string& target, SessionOptions options = {});
  // Closes the session, without waiting for the server. Steps that are still in flight may fail.
  // Deletes the session's variables. Those in a shared container are deleted with the last session
  // of the job, unless it asks to keep them.
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Returns the task that the session was opened at: "/job:worker/task:0".
  std::string master() const;

  // Runs a tr::function as one step and returns its result. The function is captured once for each
  // signature and then replayed.
  template <typename R, typename... Args>
  R run(const Function<R(Args...)>& function, std::decay_t<Args>... args);
  // Does the same with options for this step.
  template <typename R, typename... Args>
  R run(const SessionStepOptions& options, const Function<R(Args...)>& function,
        std::decay_t<Args>... args);
  // Runs anything else that can be called without arguments. It is captured on each call: in a
  // loop, use a tr::function.
  template <typename F>
    requires std::is_invocable_v<F>
  std::invoke_result_t<F> run(const F& body);

  // Starts a step and returns without waiting for its result, so that many steps can be in flight.
  // The tensors among the arguments are copied: the caller may write to them at once. The future's
  // get() throws the errors of the step; errors of its registration are thrown here.
  template <typename R, typename... Args>
  std::future<R> start(const Function<R(Args...)>& function, std::decay_t<Args>... args);

  // Returns the graph of this call as the master places it: where each operator runs, and why. Runs
  // no step.
  template <typename R, typename... Args>
  Graph graph(const Function<R(Args...)>& function, std::decay_t<Args>... args);

  // Allows the session to create these variables again, from the values that the program held
  // before the session, after they were lost with their task. The next step that uses one creates
  // it if it is missing, and so does Variable::assign(), which can then set another value.
  void initialize(const std::vector<Variable>& variables);

 private:
  using OnStep = std::function<void(std::vector<at::Tensor>, std::exception_ptr)>;

  std::vector<at::Tensor> run_step(const internal::FunctionStep& step,
                                   const SessionStepOptions& options);
  void start_step(const internal::FunctionStep& step, const SessionStepOptions& options,
                  OnStep done);
  Graph placed_graph(const internal::FunctionStep& step);

  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace trireme

#include "trireme/runtime/session_inl.h"
