#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/gate.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/ps_watch.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/life_signs.h"

namespace trireme::internal {

// What the links of a coordinator have in common. Immutable.
struct LinkContext {
  ConnectCoordinatorRequest introduction;
  std::shared_ptr<ClosureQueue> queue;
  std::shared_ptr<PsWatch> servers;
  std::shared_ptr<LifeSigns> life_signs;
};

// A coordinator's end of one worker: takes closures from the queue in batches, has the worker run
// them and brings back the results. Driven by answers and timers, without a thread of its own.
//
//   down --hello, Connect--> up --lost--> down (after a delay that grows while it keeps failing)
//
// When the worker is lost (it cannot be reached, is another incarnation, or gives no sign of life
// while closures are with it) its closures go back to the queue and only it is connected again.
// Thread-safe; held by calls under way.
class WorkerLink final : public ClosureTaker, public std::enable_shared_from_this<WorkerLink> {
 public:
  // `on_first_error`: called when a closure brought the queue's first error, not after end().
  WorkerLink(std::shared_ptr<const LinkContext> context, std::shared_ptr<Channel> channel,
             std::function<void()> on_first_error);

  void start();
  // Tells the worker to end closures below that sequence. It answers for them nevertheless.
  void cancel_below(uint64_t sequence);
  // Its closures go back to the queue, and nothing is called any more.
  void end();

  bool on_closures() override;

 private:
  // A life of the connection: what was begun in one means nothing in the next.
  using Life = uint64_t;
  enum class Stage { kDown, kUp, kEnded };
  // A call to be made: run a batch, or register what it needs.
  struct Order {
    Life life = 0;
    std::shared_ptr<const ClosureProgram> missing;
    uint64_t batch = 0;
    std::vector<ClosurePtr> closures;
    CallOptions options;
  };

  void connect();
  void on_hello(Life life, const absl::StatusOr<Hello>& hello);
  void on_connected(Life life, const Response& response);
  void try_again(Life life, const absl::Status& error);
  void connect_after(Duration delay);
  void pump();
  void register_missing(const Order& order);
  void on_registered(Life life, uint32_t program, const Response& response);
  void send(const Order& order);
  void on_answer(Life life, uint64_t batch, const Response& response);
  void on_refused(Life life, std::vector<ClosurePtr> closures, const absl::Status& error);
  void after_server_failure(const absl::Status& error, std::vector<ClosurePtr> closures);
  void finish(std::vector<ClosureQueue::Finished> finished);
  void watch_life() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ask_life();
  void lost(Life life, const absl::Status& why);
  std::vector<ClosurePtr> begin_next_life(Stage stage, std::stop_source& stop)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallOptions call_options(Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const LinkContext> context_;
  const std::shared_ptr<Channel> channel_;
  const std::function<void()> on_first_error_;
  Gate telling_;  // the first error

  Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kDown;
  Life life_ ABSL_GUARDED_BY(mutex_) = 0;
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);  // of this life's calls
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<uint32_t> programs_ ABSL_GUARDED_BY(mutex_);  // that the worker knows
  std::map<uint64_t, std::vector<ClosurePtr>> in_flight_ ABSL_GUARDED_BY(mutex_);  // by batch
  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<ClosurePtr> next_ ABSL_GUARDED_BY(mutex_);  // waits until its programs are known
  bool registering_ ABSL_GUARDED_BY(mutex_) = false;
  bool waits_for_closures_ ABSL_GUARDED_BY(mutex_) = false;
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;  // in a row
};

}  // namespace trireme::internal
