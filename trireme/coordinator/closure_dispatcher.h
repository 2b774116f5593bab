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
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/closure_requests.h"
#include "trireme/coordinator/closure_taker.h"
#include "trireme/coordinator/closures.pb.h"
#include "trireme/coordinator/link_context.h"
#include "trireme/coordinator/worker_connection.h"
#include "trireme/coordinator/worker_inventory.h"
#include "trireme/coordinator/worker_state.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// Dispatches closures to one worker: takes them from the queue in batches, gives the worker the
// functions and resources that it lacks for them, has it run them and returns the results to the
// queue. Owns the connection to the worker; when that is lost, the closures are requeued.
//
// Thread-safe. Calls under way and the queue hold it; its connection does not. The queue's lock may
// be taken under the dispatcher's, not the other way round. The connection has a lock of its own;
// no thread holds both.
class ClosureDispatcher final : public ClosureTaker,
                                public ConnectionListener,
                                public std::enable_shared_from_this<ClosureDispatcher> {
 public:
  // `cancel_all_below` is called with a sequence when a closure brought the queue's first error.
  static std::shared_ptr<ClosureDispatcher> create(std::shared_ptr<const LinkContext> context,
                                                   int worker, std::shared_ptr<Channel> channel,
                                                   std::function<void(uint64_t)> cancel_all_below);

  void start() { connection_->start(); }
  // Tells the worker to end closures below that sequence. It answers for them nevertheless.
  void cancel_below(uint64_t sequence);
  // Requeues the closures and ends the connection. No more calls are made.
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
    uint64_t batch = 0;  // 0 if `missing` is supplied.
    RunRequest run;      // Of the batch.
    CallOptions options;
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

  // Takes and sends as many closures as the worker may have. Returns true if it took some from the
  // queue.
  bool dispatch();
  void supply(const Order& order);
  void on_supplied(const Order& order, const Response& response);
  void send(Order order);
  void on_answer(ConnectionId connection, uint64_t batch, const Response& response);
  void on_results(ConnectionId connection, std::vector<ClosurePtr> closures,
                  const RunClosuresResponse& answer, const std::vector<at::Tensor>& tensors);
  // Has the function captured for the elements that the worker has drawn, since the closure's
  // function does not take them. Until a thread of the user has done so, no worker has the closure.
  void on_drawn(ConnectionId connection, ClosurePtr closure, const ClosureResponse& result);
  void capture_again(ConnectionId connection, const ClosurePtr& closure, const DrawnShapes& drawn);
  // Requeues or fails closures that the worker did not run at all.
  void on_refused(ConnectionId connection, std::vector<ClosurePtr> closures,
                  const absl::Status& error);
  // Requeues closures whose parameter server did not do its part, unless that is lost.
  void after_server_failure(const absl::Status& error, std::vector<ClosurePtr> closures);
  // Fails the closures that match `fails` and returns the rest.
  std::vector<ClosurePtr> fail_if(std::vector<ClosurePtr> closures, const absl::Status& error,
                                  const std::function<bool(Closure&)>& fails);
  void finish(std::vector<ClosureQueue::Finished> finished);
  // Notes how long closures kept the worker busy, and how long they were away.
  void note_times(const std::vector<ClosurePtr>& closures, Duration busy, Duration waited);

  bool is_current(ConnectionId connection) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return connection_in_use_ && connection_in_use_->id == connection;
  }
  CallOptions call_options(Duration timeout) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stops using the connection and returns the closures that it has, to be requeued. Answers that
  // come later are ignored, so that each closure is returned to the queue once.
  std::vector<ClosurePtr> disconnect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const LinkContext> context_;
  const int worker_;
  const std::shared_ptr<Channel> channel_;
  const std::function<void(uint64_t)> cancel_all_below_;
  std::shared_ptr<WorkerConnection> connection_;  // Set by create(), then constant.

  std::atomic<size_t> batches_ = 0;  // Size of in_flight_, for the queue to read under its lock.
  std::atomic<uint64_t> closures_done_ = 0;

  mutable Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Set from on_connected() until the connection is lost. Each thread that sends or takes in an
  // answer sees it and the closures in flight as of the same moment.
  std::optional<EstablishedConnection> connection_in_use_ ABSL_GUARDED_BY(mutex_);
  WorkerInventory inventory_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Batch> in_flight_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_batch_ ABSL_GUARDED_BY(mutex_) = 1;
  // Closures of the next batch, while the worker is given what they need.
  std::vector<ClosurePtr> next_ ABSL_GUARDED_BY(mutex_);
  bool supplying_ ABSL_GUARDED_BY(mutex_) = false;
  // Closures that are sent before others are taken from the queue.
  std::vector<ClosurePtr> captured_again_ ABSL_GUARDED_BY(mutex_);
  // Function of the last closure, to be named if it makes the worker fail again and again.
  std::shared_ptr<const ClosureFunction> last_function_ ABSL_GUARDED_BY(mutex_);
  // True while the queue remembers this taker, to tell it of new closures.
  bool waits_for_closures_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t losses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
