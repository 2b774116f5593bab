#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/closure_programs.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/ps_watch.h"
#include "trireme/coordinator/straggler_watch.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/life_signs.h"

namespace trireme::internal {

// What the links of a coordinator have in common. Immutable.
struct LinkContext {
  ConnectCoordinatorRequest introduction;
  std::shared_ptr<ClosureQueue> queue;
  std::shared_ptr<PsWatch> servers;
  std::shared_ptr<LifeSigns> life_signs;
  std::shared_ptr<WorkerResources> resources;
  std::shared_ptr<StragglerWatch> stragglers;
  std::shared_ptr<ProgramsInUse> programs;
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
  // `cancel_all_below`: called when a closure brought the queue's first error, with a sequence.
  WorkerLink(std::shared_ptr<const LinkContext> context, int worker,
             std::shared_ptr<Channel> channel, std::function<void(uint64_t)> cancel_all_below);

  void start();
  // Tells the worker to end closures below that sequence. It answers for them nevertheless.
  void cancel_below(uint64_t sequence);
  // Its closures go back to the queue, and nothing is called any more.
  void end();

  bool on_closures() override;
  int worker() const override { return worker_; }
  bool is_idle() const override { return batches_.load(std::memory_order_relaxed) == 0; }
  const std::string& address() const { return channel_->address(); }
  const std::shared_ptr<Channel>& channel() const { return channel_; }
  bool is_up() const;
  bool was_ever_up() const;
  WorkerState state() const;

 private:
  // A life of the connection: what was begun in one means nothing in the next.
  using Life = uint64_t;
  enum class Stage { kDown, kUp, kEnded };
  // A call to be made: run a batch, or give the worker what that needs.
  struct Order {
    Life life = 0;
    std::shared_ptr<const ClosureProgram> program;
    std::shared_ptr<WorkerResource> resource;
    uint64_t batch = 0;
    std::vector<ClosurePtr> closures;
    CallOptions options;
  };

  void connect();
  void on_hello(Life life, const absl::StatusOr<Hello>& hello);
  void on_connected(Life life, const Response& response);
  void try_again(Life life, const absl::Status& error);
  void connect_after(Duration delay);
  // Takes and sends what it can; whether it took closures from the queue.
  bool pump();
  // What a batch needs and the worker does not have, if anything.
  void find_missing(Order& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void supply(const Order& order);
  void on_supplied(const Order& order, const Response& response);
  void send(const Order& order);
  void on_answer(Life life, uint64_t batch, const Response& response);
  void on_drawn(Life life, ClosurePtr closure, const ClosureResult& result);
  void capture_again(Life life, const ClosurePtr& closure, const DrawnShapes& drawn);
  void on_refused(Life life, std::vector<ClosurePtr> closures, const absl::Status& error);
  // Of closures for which a parameter server did not do its part: asks whether it is lost.
  void after_server_failure(const absl::Status& error, std::vector<ClosurePtr> closures);
  // Ends those of which that is so with the error; the others.
  std::vector<ClosurePtr> fail_those(std::vector<ClosurePtr> closures, const absl::Status& error,
                                     const std::function<bool(Closure&)>& fails);
  void finish(std::vector<ClosureQueue::Finished> finished);
  void note_times(const std::vector<ClosurePtr>& closures, Duration busy, Duration waited);
  void watch_speed();
  void watch_life() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ask_life();
  void lost(Life life, const absl::Status& why);
  std::vector<ClosurePtr> begin_next_life(Stage stage, std::stop_source& stop)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  CallOptions call_options(Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const LinkContext> context_;
  const int worker_;
  const std::shared_ptr<Channel> channel_;
  const std::function<void(uint64_t)> cancel_all_below_;

  mutable Mutex mutex_;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kDown;
  Life life_ ABSL_GUARDED_BY(mutex_) = 1;
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);  // of this life's calls
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  // What the worker has.
  std::set<uint32_t> programs_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> resources_ ABSL_GUARDED_BY(mutex_);
  struct Batch {
    std::vector<ClosurePtr> closures;
    Time sent;
  };
  std::map<uint64_t, Batch> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> batches_ = 0;  // as many as are in flight
  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<ClosurePtr> next_ ABSL_GUARDED_BY(mutex_);  // waits until the worker has its needs
  bool supplying_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<ClosurePtr> captured_again_ ABSL_GUARDED_BY(mutex_);              // to be next
  std::shared_ptr<const ClosureProgram> last_program_ ABSL_GUARDED_BY(mutex_);  // of a closure
  bool waits_for_closures_ ABSL_GUARDED_BY(mutex_) = false;
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;
  Time heard_ ABSL_GUARDED_BY(mutex_) = {};  // of a batch
  bool was_up_ ABSL_GUARDED_BY(mutex_) = false;
  std::string failure_ ABSL_GUARDED_BY(mutex_);  // the last to connect that the log told of
  // In a row: failed attempts to connect, and losses before a closure was done.
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  int losses_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t closures_done_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
