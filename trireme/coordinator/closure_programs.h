#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/graph/function.h"
#include "trireme/graph/graph_file.h"
#include "trireme/ps/parameter_server_home.h"

namespace trireme::internal {

// The programs of a coordinator: captured functions, known by what they are, so that one that is
// captured again is the same. Thread-safe.
class ClosurePrograms {
 public:
  ClosurePrograms(uint64_t coordinator, std::shared_ptr<ParameterServerHome> home)
      : coordinator_(coordinator), home_(std::move(home)) {}

  // A closure of the step, ready for the queue. Throws Error for a function that cannot run on
  // workers.
  ClosurePtr closure_of(const FunctionStep& step);

 private:
  std::shared_ptr<const ClosureProgram> program_of(const FunctionStep& step);
  // Fills in what the step says of its program, but for its id and its registration.
  RegisterProgramRequest describe(const FunctionStep& step, ClosureProgram& program) const;

  const uint64_t coordinator_;
  const std::shared_ptr<ParameterServerHome> home_;

  Mutex mutex_;
  // A plan is held, so that its address means it.
  std::unordered_map<const Plan*,
                     std::pair<std::shared_ptr<const Plan>, std::shared_ptr<const ClosureProgram>>>
      by_plan_ ABSL_GUARDED_BY(mutex_);
  std::map<Content, std::shared_ptr<const ClosureProgram>> by_content_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace trireme::internal
