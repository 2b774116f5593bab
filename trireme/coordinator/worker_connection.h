#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"
#include "trireme/coordinator/link_context.h"
#include "trireme/rpc/channel.h"

namespace trireme::internal {

// Number of a connection to a worker. The first is 1, and each loss begins the next. Answers to
// calls of an earlier connection are ignored in a later one.
using ConnectionId = uint64_t;

// An established connection, with what its user needs to make calls.
struct EstablishedConnection {
  ConnectionId id = 0;
  uint64_t incarnation = 0;
  std::stop_token stop = {};  // Cancels the calls of this connection once it is lost.
  bool is_known = false;      // True if the worker still has what it was supplied with.
};

// The loss of a connection.
struct ConnectionLoss {
  ConnectionId id = 0;
  absl::Status why;
  int losses_in_a_row = 0;  // Number of losses since a closure was done, including this one.
  Duration backoff = {};    // Time until the worker is connected again.
};

// Receives the events of a WorkerConnection, which calls it without holding a lock.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  // Called when calls can be made. Not called again before on_lost() has returned.
  virtual void on_connected(const EstablishedConnection& connection) = 0;
  // Called once when a connection is lost, before its calls are cancelled. The listener reclaims
  // its closures here, so the errors of those calls find nothing left to reclaim.
  virtual void on_lost(const ConnectionLoss& loss) = 0;
  // Returns true while the worker has work, so that its health must be checked.
  virtual bool has_work() const = 0;
  // Called before a health check, when the worker has not answered a call for a while.
  virtual void on_silence() = 0;
};

// Keeps one worker connected to its coordinator. Driven by answers and timers; has no thread of its
// own.
//
//   down --hello, Connect--> up --lost--> down (reconnects after a back-off)
//
// A worker is lost when it cannot be reached, is another incarnation, or fails a health check while
// it has work. The back-off grows while the worker keeps being lost.
//
// Thread-safe. Kept alive by its calls under way. The listener may be destroyed before they end.
class WorkerConnection : public std::enable_shared_from_this<WorkerConnection> {
 public:
  WorkerConnection(std::shared_ptr<const LinkContext> context, int worker,
                   std::shared_ptr<Channel> channel, std::weak_ptr<ConnectionListener> listener);

  // Begins to connect.
  void start();
  // Ends the connection for good: cancels its calls and notifies the worker. Does not call
  // on_lost().
  void end();

  // Begins to check the worker's health, unless a check is planned. Must be called after has_work()
  // of the listener has become true. Takes no lock.
  void watch();
  // Notes that the worker has answered, which makes a health check unnecessary. Takes no lock.
  void note_answer(Time now) { last_answer_.store(now, std::memory_order_relaxed); }
  // Notes that the worker has finished closures, which resets the back-off.
  void note_progress();
  // Ends connection `id`, unless it has ended before, and reconnects after a back-off.
  void lose(ConnectionId id, const absl::Status& why);

  int worker() const { return worker_; }
  const std::shared_ptr<Channel>& channel() const { return channel_; }
  bool is_up() const;
  bool was_ever_up() const;

 private:
  enum class Stage { kDown, kUp, kEnded };

  void connect();
  void connect_after(Duration delay);
  void on_hello(ConnectionId id, const absl::StatusOr<Hello>& hello);
  void on_response(ConnectionId id, const Response& response);
  void try_again(ConnectionId id, const absl::Status& error);
  void check_health_at(Time time);
  void check_health();
  // Ends the current connection and returns the stop source that cancels its calls.
  std::stop_source begin_next(Stage stage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const LinkContext> context_;
  const int worker_;
  const std::shared_ptr<Channel> channel_;
  const std::weak_ptr<ConnectionListener> listener_;

  std::atomic<bool> watched_ = false;       // True while a health check is planned or under way.
  std::atomic<Time> last_answer_ = Time();  // Time of the last answer to a batch.

  mutable Mutex mutex_;  // Neither the queue nor the listener is called under it.
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kDown;
  ConnectionId id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);  // Cancels the calls of connection `id_`.
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool was_up_ ABSL_GUARDED_BY(mutex_) = false;         // True once the worker has been connected.
  std::string logged_failure_ ABSL_GUARDED_BY(mutex_);  // Last failure to connect that was logged.
  // Number of failed attempts to connect and of losses since the worker last finished a closure.
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  int losses_in_a_row_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace trireme::internal
