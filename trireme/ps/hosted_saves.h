#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/executor.h"
#include "trireme/base/files.h"
#include "trireme/base/mutex.h"
#include "trireme/ps/server_save.h"
#include "trireme/ps/variable_store.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

struct HostedSavesOptions {
  std::string checkpoint_root;  // folder inside which files may be; empty for the working directory
  Files* files = &Files::local();
  Duration stuck_after = std::chrono::seconds(60);  // as in ServerSaveOptions
  Duration unasked_after = std::chrono::seconds(60);
};

// The saves of one server, one per job at a time. A save ends with its job's generation, and if its
// client does not ask for it any more. Thread-safe. Must be held by a shared_ptr. The store must
// outlive stop().
class HostedSaves : public std::enable_shared_from_this<HostedSaves> {
 public:
  HostedSaves(VariableStore& store, HostedSavesOptions options);
  ~HostedSaves() { stop(); }

  // Serve the methods of trireme.Saves, and answer the call at once or later. begin() and abort()
  // use the disk, so they must not be called on a thread that serves the network.
  void begin(ServerCall call);
  void wait(ServerCall call);
  void abort(ServerCall call);

  VariableStore& store() { return store_; }
  const HostedSavesOptions& options() const { return options_; }
  // Runs work that waits for the disk. Its threads are started when they are first needed, and are
  // not those that apply pushes: all of those may wait for a save. Drops the work after stop().
  void submit(Work work);

  // Aborts all saves and waits for their threads.
  void stop();

 private:
  using Save = std::shared_ptr<ServerSave>;

  // Checks a request and makes the save.
  absl::StatusOr<Save> make(const BeginSaveRequest& request);
  // Makes `save` the one of its job. Returns the one before it, which has ended or ends now.
  absl::StatusOr<Save> add(const Save& save);
  Save find(const std::string& job, const std::string& id);
  void tick_later();
  void tick();

  VariableStore& store_;
  const HostedSavesOptions options_;
  Mutex tick_mutex_;  // held by tick(); taken before mutex_
  Mutex mutex_;
  std::map<std::string, Save> saves_ ABSL_GUARDED_BY(mutex_);  // by job
  std::vector<Save> earlier_ ABSL_GUARDED_BY(mutex_);          // replaced, but not over yet
  bool ticking_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<ThreadPool> pool_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace trireme::internal
