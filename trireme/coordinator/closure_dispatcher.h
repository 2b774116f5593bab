#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/allotted_elements.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closure_requests.h"
#include "trireme/coordinator/closure_results.h"
#include "trireme/coordinator/closure_taker.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/link_context.h"
#include "trireme/coordinator/route_backoff.h"
#include "trireme/coordinator/worker_connection.h"
#include "trireme/coordinator/worker_inventory.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// Dispatches closures to one worker: takes them from the queue in batches, supplies the worker with
// the functions and resources that it lacks for them, sends the batches and returns the results to
// the queue. Owns the connection to the worker; when that is lost, requeues the closures.
//
// Thread-safe. Kept alive by its calls under way and by the queue, but not by its connection. The
// queue's lock may be taken under the dispatcher's, not the other way round. The connection has a
// lock of its own; no thread holds both.
class ClosureDispatcher final : public ClosureTaker,
                                public ConnectionListener,
                                public std::enable_shared_from_this<ClosureDispatcher> {
 public:
  // When a closure fails with the queue's first error, `cancel_all_below` is called with the
  // sequence below which the closures on all workers should be cancelled.
  static std::shared_ptr<ClosureDispatcher> create(std::shared_ptr<const LinkContext> context,
                                                   int worker, std::shared_ptr<Channel> channel,
                                                   std::function<void(uint64_t)> cancel_all_below);

  void start() { connection_->start(); }
  // Tells the worker to cancel closures below `sequence`; with `before_push`, only those that have
  // not begun to push. The worker still answers for them.
  void cancel_below(uint64_t sequence, bool before_push = false);
  // Requeues the closures and ends the connection. The dispatcher takes no more closures.
  void end();

  bool on_closures() override;
  int worker() const override { return worker_; }
  bool is_idle() const override { return batches_.load(std::memory_order_relaxed) == 0; }

  const std::shared_ptr<WorkerConnection>& connection() const { return connection_; }
  WorkerState state() const;

 private:
  // A call to be made: run a batch, or supply a function or a resource that the next batch needs.
  struct Order {
    ConnectionId connection = 0;
    WorkerInventory::Item missing;
    uint64_t batch = 0;  // Number of the batch, or 0 to supply `missing`.
    RunRequest run;      // Request that runs the batch.
    CallOptions options;

    bool has_call() const { return batch != 0 || !missing.empty(); }
  };
  struct Batch {
    std::vector<ClosurePtr> closures;
    Time sent;
  };

  ClosureDispatcher(std::shared_ptr<const LinkContext> context, int worker,
                    std::shared_ptr<Channel> channel,
                    std::function<void(uint64_t)> cancel_all_below);

  void on_connected(const EstablishedConnection& connection) override;
  void on_lost(const ConnectionLoss& loss) override;
  bool has_work() const override;
  void on_silence() override;

  // Sends batches until the worker has as many as it may have or the queue is empty. Returns true
  // if it took closures from the queue.
  bool dispatch();
  // Finishes the closures for which there are no more elements, and lets the queue cancel those
  // that wait for some if an error is pending.
  void finish_ended(const AllottedClosures& allotted);
  // Registers the function or creates the resource that `order` names.
  void supply(const Order& order);
  void on_supplied(const Order& order, const Response& response);
  void send(Order order);
  void on_answer(ConnectionId connection, uint64_t batch, const Response& response);
  void on_results(ConnectionId connection, std::vector<ClosurePtr> closures,
                  const RunClosuresResponse& answer, const std::vector<at::Tensor>& tensors);
  // Defers a capture of the function for the shapes that the worker has drawn, since the closure's
  // function does not take them. No worker has the closure until a thread of the user has run the
  // capture.
  void on_drawn(ConnectionId connection, ClosurePtr closure, const ClosureResponse& result);
  void capture_again(ConnectionId connection, const ClosurePtr& closure, const DrawnShapes& drawn);
  // Requeues or fails closures that the worker rejected or did not answer for.
  void on_refused(ConnectionId connection, std::vector<ClosurePtr> closures,
                  const absl::Status& error);
  // Requeues closures that failed because the worker could not use a parameter server, after a
  // check of the server. If the server is lost, they are cancelled. Otherwise the worker backs off,
  // and the closures go to other workers.
  void after_server_failure(const absl::Status& error, std::vector<ClosurePtr> closures);
  // Fails the closures that match `fails` and returns the rest.
  std::vector<ClosurePtr> fail_if(std::vector<ClosurePtr> closures, const absl::Status& error,
                                  const std::function<bool(Closure&)>& fails);
  void finish(std::vector<ClosureQueue::Finished> finished);
  // Notes that a batch kept the worker busy for `busy`, and was answered `waited` after it was
  // sent.
  void note_times(const ClosuresThatRan& ran, Duration busy, Duration waited);

  bool is_current(ConnectionId connection) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return connection_in_use_ && connection_in_use_->id == connection;
  }
  CallOptions call_options(Duration timeout) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closures to be requeued: those that the worker may have run, and those that it has not.
  struct Returned {
    std::vector<ClosurePtr> sent = {};
    std::vector<ClosurePtr> unsent = {};
  };
  // Stops using the connection and returns its closures, which the caller requeues. Answers that
  // arrive later are ignored, so that each closure is returned to the queue once.
  Returned disconnect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void requeue(const Returned& closures);

  const std::shared_ptr<const LinkContext> context_;
  const int worker_;
  const std::shared_ptr<Channel> channel_;
  const std::function<void(uint64_t)> cancel_all_below_;
  std::shared_ptr<WorkerConnection> connection_;  // Set by create(), then constant.

  std::atomic<size_t> batches_ = 0;  // Size of in_flight_, for the queue to read under its lock.
  std::atomic<uint64_t> closures_done_ = 0;

  mutable Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Set from on_connected() until the connection is lost. Guarded by the same lock as the closures
  // in flight, so that these always belong to this connection.
  std::optional<EstablishedConnection> connection_in_use_ ABSL_GUARDED_BY(mutex_);
  WorkerInventory inventory_ ABSL_GUARDED_BY(mutex_);
  RouteBackoff backoff_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Batch> in_flight_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 1;
  // Closures of the next batch, while the worker is supplied with what they need.
  std::vector<ClosurePtr> next_ ABSL_GUARDED_BY(mutex_);
  bool supplying_ ABSL_GUARDED_BY(mutex_) = false;  // True while a supply call is under way.
  // Closures whose function was captured again. They form the next batch, before closures are
  // taken from the queue, because this worker has made the elements that they draw.
  std::vector<ClosurePtr> captured_again_ ABSL_GUARDED_BY(mutex_);
  // Function of the last batch's first closure, named in the log if the worker keeps failing.
  std::shared_ptr<const ClosureFunction> last_function_ ABSL_GUARDED_BY(mutex_);
  // True while the queue remembers this taker, to notify it of new closures.
  bool waits_for_closures_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
