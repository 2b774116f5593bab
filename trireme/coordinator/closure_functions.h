#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/lru_map.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/function/function.h"
#include "trireme/graph/graph_file.h"
#include "trireme/ps/parameter_server_backend.h"

namespace trireme::internal {

// Keeps track of which functions of a coordinator are in use. Thread-safe.
//
// Separate from ClosureFunctions because dispatchers share it: a dispatcher may be destroyed on a
// thread that serves calls, and must not hold the last reference to the parameter server backend,
// whose destructor makes calls to the servers and waits for them.
class FunctionsInUse {
 public:
  void add(const std::shared_ptr<const ClosureFunction>& function);
  // Returns the ids in `functions` of functions that nothing uses any more.
  std::vector<uint32_t> unused(const std::set<uint32_t>& functions) const;
  // Erases the functions that nothing uses any more.
  void erase_unused();

 private:
  mutable Mutex mutex_;
  std::map<uint32_t, std::weak_ptr<const ClosureFunction>> functions_ ABSL_GUARDED_BY(mutex_);
};

// Makes the closures of a coordinator, and the functions that they call. Functions are identified
// by their content, so that one that is captured again with the same result gets the same id and is
// not registered with the workers again. Thread-safe.
class ClosureFunctions {
 public:
  ClosureFunctions(uint64_t coordinator, std::shared_ptr<ParameterServerBackend> backend)
      : coordinator_(coordinator), backend_(std::move(backend)) {}

  // Makes a closure of the step, ready for the queue. Throws Error for a function that cannot run
  // on workers.
  ClosurePtr closure_of(const FunctionStep& step, const StandIns& stand_ins);
  // Sets the current function of the closure to that of `step`, which is the same call for elements
  // of other shapes. Keeps the closure's tensors; throws Error if the step does not take them.
  void set_variant(Closure& closure, const FunctionStep& step, const StandIns& stand_ins);
  // Makes a closure of a native function, which workers find by its name.
  ClosurePtr native_closure_of(const std::string& name, std::vector<at::Tensor> tensors);

  const std::shared_ptr<FunctionsInUse>& in_use() const { return in_use_; }

 private:
  // The elements that a worker draws from one resource for a step. Their tensors are consecutive
  // inputs of the step's graph.
  struct WorkerDraw {
    uint64_t resource;
    size_t first_input;
    size_t elements;
    size_t tensors;    // Number of tensors of an element.
    bool accepts_end;  // True if the function accepts the end of the data.
  };
  // Returns the draws of a step, ordered by their first input.
  static std::vector<WorkerDraw> draws_of(const FunctionStep& step, const StandIns& stand_ins);
  std::shared_ptr<const ClosureFunction> function_of(const FunctionStep& step,
                                                     const std::vector<WorkerDraw>& draws);
  // Fills in all of `function` except its id and registration, and returns the request that
  // registers it, without the id and the draws.
  RegisterFunctionRequest describe(const FunctionStep& step, ClosureFunction& function) const;

  const uint64_t coordinator_;
  const std::shared_ptr<ParameterServerBackend> backend_;
  const std::shared_ptr<FunctionsInUse> in_use_ = std::make_shared<FunctionsInUse>();

  Mutex mutex_;
  // A plan, and the inputs that workers draw. The key holds the plan, so that its address is not
  // reused.
  using Key = std::pair<std::shared_ptr<const Plan>, std::vector<size_t>>;
  LruMap<Key, std::shared_ptr<const ClosureFunction>> by_plan_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const ClosureFunction>> by_name_ ABSL_GUARDED_BY(mutex_);
  std::map<Fingerprint, std::weak_ptr<const ClosureFunction>> by_content_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace trireme::internal
