#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/allotted_source.h"
#include "trireme/coordinator/batch_order.h"
#include "trireme/coordinator/closure_batch.h"
#include "trireme/coordinator/closure_environment.h"
#include "trireme/coordinator/ending_executor.h"
#include "trireme/coordinator/hosted_function.h"
#include "trireme/coordinator/received_closure.h"
#include "trireme/coordinator/resource_reader.h"
#include "trireme/graph/plan.h"
#include "trireme/ps/ps_client.h"

namespace trireme::internal {

struct ClosureHostOptions {
  uint64_t coordinator = 0;
  std::string task;                           // Name of this worker, for errors.
  std::vector<uint64_t> server_incarnations;  // One for each ps task, in order.
  int updates_at_once = 1;
  DeviceList devices = {};  // Devices of this worker.
};

// Runs the closures of one coordinator on a worker, and holds the coordinator's functions,
// iterators and connections to the parameter servers. Several closures may pull and push
// concurrently, but closures that both read and change variables take turns. Thread-safe. Kept
// alive by its running batches.
class ClosureHost : public std::enable_shared_from_this<ClosureHost> {
 public:
  ClosureHost(ClosureHostOptions options, std::unique_ptr<PsClient> servers,
              std::shared_ptr<EndingExecutor> executor);

  const std::vector<uint64_t>& server_incarnations() const { return server_incarnations_; }
  int servers() const { return environment_.servers->servers(); }

  // Adds a captured function. Does nothing if the id is taken. Blocks: see make_hosted_function().
  absl::Status add_function(uint32_t id, std::shared_ptr<const GraphData> graph,
                            const std::vector<std::optional<VariableLayout>>& layouts,
                            std::vector<ClosureDraw> draws);
  // Adds a native function of this binary.
  absl::Status add_native_function(uint32_t id, const std::string& name);
  void drop_function(uint32_t id);

  // Adds an iterator. Does nothing if the id is taken.
  absl::Status add_resource(uint64_t id, std::shared_ptr<ResourceReader> reader);
  void drop_resource(uint64_t id);

  // Runs a batch. Closures that take turns do so after those of the batches that were sent before.
  // Calls `done` once, when all closures have ended, or at once with NOT_FOUND if a function or a
  // resource is unknown.
  void run(ReceivedBatch received, std::stop_source stop, ClosureBatch::Done done);
  // Returns true if run() is likely to return sooner than another thread can be woken.
  bool is_quick(const std::vector<ReceivedClosure>& closures);
  // Stops the batches below `sequence`. Batches below it that arrive later are stopped too.
  void cancel_below(uint64_t sequence);
  // Stops running closures that have not begun to push. Does not concern those that arrive later,
  // because the same closures may be sent again.
  void cancel_unpushed() { batches_.stop_unpushed(); }

 private:
  // Returns the function of the closure, followed by the variants that can run in its place.
  absl::StatusOr<std::vector<HostedFunctionPtr>> functions_of(const ReceivedClosure& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<AllottedSources> sources_of(const ReceivedClosure& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<uint64_t> server_incarnations_;
  const DeviceList devices_;
  ClosureEnvironment environment_;
  RunningBatches batches_;
  const std::shared_ptr<BatchOrder> order_ = std::make_shared<BatchOrder>();

  Mutex mutex_;
  std::map<uint32_t, HostedFunctionPtr> functions_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<ResourceReader>> resources_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> warned_ ABSL_GUARDED_BY(mutex_);  // Missing devices that were reported.
  uint64_t cancelled_below_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
