#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure_batch.h"
#include "trireme/coordinator/closure_environment.h"
#include "trireme/coordinator/ending_executor.h"
#include "trireme/coordinator/hosted_function.h"
#include "trireme/coordinator/received_closure.h"
#include "trireme/function/draws.h"
#include "trireme/graph/plan.h"
#include "trireme/ps/ps_client.h"

namespace trireme::internal {

struct ClosureHostOptions {
  uint64_t coordinator = 0;
  std::string task;                           // name of this worker, for errors
  std::vector<uint64_t> server_incarnations;  // in the order of the tasks
  int updates_at_once = 1;
};

// Holds what a worker has of one coordinator: its functions, its iterators, and the way to its
// variables. Pulls and pushes of several closures are on their way at once. Those that both read
// and change variables take turns. Thread-safe; held by the batches that run.
class ClosureHost : public std::enable_shared_from_this<ClosureHost> {
 public:
  ClosureHost(ClosureHostOptions options, std::unique_ptr<PsClient> servers,
              std::shared_ptr<EndingExecutor> executor);

  const std::vector<uint64_t>& server_incarnations() const { return server_incarnations_; }
  int servers() const { return environment_.servers->servers(); }

  // Adds a captured function. Does nothing if there is one of that id. Blocks: see
  // make_hosted_function().
  absl::Status add_function(uint32_t id, std::shared_ptr<const GraphData> graph,
                            const std::vector<std::optional<VariableLayout>>& layouts,
                            std::vector<ClosureDraw> draws);
  // Adds a function of this binary.
  absl::Status add_native_function(uint32_t id, const std::string& name);
  void drop_function(uint32_t id);

  // Does nothing if there is one of that id.
  absl::Status add_resource(uint64_t id, std::shared_ptr<ElementSource> source);
  void drop_resource(uint64_t id);

  // Calls `done` once, when all closures have ended. NOT_FOUND if it does not know a function or a
  // resource.
  void run(std::vector<ReceivedClosure> closures, uint64_t watermark, std::stop_source stop,
           ClosureBatch::Done done);
  // Returns true if run() is likely to return sooner than another thread can be woken.
  bool is_quick(const std::vector<ReceivedClosure>& closures);
  void cancel_below(uint64_t sequence);

 private:
  // Returns the function of the closure, then the variants of it that can run in its place.
  absl::StatusOr<std::vector<HostedFunctionPtr>> functions_of(const ReceivedClosure& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<ElementSources> sources_of(const ReceivedClosure& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<uint64_t> server_incarnations_;
  ClosureEnvironment environment_;
  RunningBatches batches_;

  Mutex mutex_;
  std::map<uint32_t, HostedFunctionPtr> functions_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<ElementSource>> resources_ ABSL_GUARDED_BY(mutex_);
  uint64_t cancelled_below_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
