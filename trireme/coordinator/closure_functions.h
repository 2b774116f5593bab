#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/function/function.h"
#include "trireme/graph/graph_file.h"
#include "trireme/ps/parameter_server_backend.h"

namespace trireme::internal {

// Which functions are in use. Of its own, as links ask it, and what else makes functions must not
// end on a thread that serves calls: it tells servers about it and waits. Thread-safe.
class FunctionsInUse {
 public:
  void add(const std::shared_ptr<const ClosureFunction>& function);
  // Of these, those that nothing uses any more.
  std::vector<uint32_t> gone(const std::set<uint32_t>& functions) const;
  void forget_gone();

 private:
  mutable Mutex mutex_;
  std::map<uint32_t, std::weak_ptr<const ClosureFunction>> functions_ ABSL_GUARDED_BY(mutex_);
};

// The functions of a coordinator: captured functions, known by what they are, so that one that is
// captured again is the same. Thread-safe.
class ClosureFunctions {
 public:
  ClosureFunctions(uint64_t coordinator, std::shared_ptr<ParameterServerBackend> backend)
      : coordinator_(coordinator), backend_(std::move(backend)) {}

  // A closure of the step, ready for the queue. Throws Error for a function that cannot run on
  // workers.
  ClosurePtr closure_of(const FunctionStep& step, const StandIns& stand_ins);
  // Gives a closure the function of this step, which is the same call for other elements of
  // workers. Its tensors stay. Throws Error if the step does not take these.
  void set_variant(Closure& closure, const FunctionStep& step, const StandIns& stand_ins);
  // One of a function that workers have by this name.
  ClosurePtr native_closure_of(const std::string& name, std::vector<at::Tensor> tensors);

  const std::shared_ptr<FunctionsInUse>& in_use() const { return in_use_; }

 private:
  // What workers draw for a step, by the first input.
  struct WorkerDraw {
    uint64_t resource;
    size_t first_input;
    size_t elements;
    size_t tensors;  // of an element
  };
  static std::vector<WorkerDraw> draws_of(const FunctionStep& step, const StandIns& stand_ins);
  std::shared_ptr<const ClosureFunction> function_of(const FunctionStep& step,
                                                     const std::vector<WorkerDraw>& draws);
  // Fills in what the step says of its function, but for its id and its registration.
  RegisterFunctionRequest describe(const FunctionStep& step, ClosureFunction& function) const;

  const uint64_t coordinator_;
  const std::shared_ptr<ParameterServerBackend> backend_;
  const std::shared_ptr<FunctionsInUse> in_use_ = std::make_shared<FunctionsInUse>();

  Mutex mutex_;
  // A plan, which is held, so that its address means it, and the inputs that workers draw.
  using Key = std::pair<std::shared_ptr<const Plan>, std::vector<size_t>>;
  std::map<Key, std::shared_ptr<const ClosureFunction>> by_plan_ ABSL_GUARDED_BY(mutex_);
  std::deque<Key> plans_ ABSL_GUARDED_BY(mutex_);  // of the above, the oldest first
  std::map<std::string, std::shared_ptr<const ClosureFunction>> by_name_ ABSL_GUARDED_BY(mutex_);
  std::map<Content, std::weak_ptr<const ClosureFunction>> by_content_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace trireme::internal
