#include "trireme/coordinator/worker_connection.h"

#include <algorithm>
#include <utility>

#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/rpc/async_hello.h"
#include "trireme/rpc/timer.h"

// A connection is made in two calls. Hello returns the incarnation of the process at the address;
// all later calls name it, so that a restarted worker rejects them. Connect introduces the
// coordinator and has the worker connect to the parameter servers. If Connect fails because of a
// parameter server, PsWatch checks that server first: if it is lost, the queue is closed and there
// is nothing to reconnect for.
//
// Every callback carries the id of the connection that it was started for. begin_next() increments
// the id under the lock when a connection ends, so late callbacks see another id and do nothing.
// The same step hands out the stop source of the old connection. It is triggered after the listener
// has reclaimed its closures and without the lock, because cancelled calls may call back in place.
//
// A failed attempt to connect is retried after a delay of at most a second. A worker that is lost
// for the third time without having finished a closure is probably killed by the closures that it
// gets, so from then on each loss doubles the back-off.
//
// Health checks run only while the worker has work: an idle worker that is lost is noticed at the
// next call. `watched_` ensures that one check is planned at a time, without a lock in watch(),
// which is called for every batch. An answer within the last interval puts the check off until an
// interval after that answer. So a worker that freezes is lost within the interval and the time
// limit of the check, counted from its last answer.
namespace trireme::internal {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr Duration kDisconnectTimeout = std::chrono::seconds(2);
constexpr Duration kHealthCheckInterval = std::chrono::seconds(1);
constexpr Duration kHealthCheckTimeout = std::chrono::seconds(3);

RetryPolicy reconnect_delays() {
  return {.first_delay = std::chrono::milliseconds(50), .longest_delay = std::chrono::seconds(1)};
}

// Returns the back-off of a worker that was lost `losses` times in a row: 50 ms for the first two,
// then 1 s, doubled with each further loss up to a minute.
Duration backoff_after(int losses) {
  constexpr int kForgiven = 2;
  constexpr Duration kLongest = std::chrono::seconds(60);
  if (losses <= kForgiven) return std::chrono::milliseconds(50);
  return std::min<Duration>(std::chrono::seconds(1 << std::min(losses - kForgiven - 1, 6)),
                            kLongest);
}

}  // namespace

WorkerConnection::WorkerConnection(std::shared_ptr<const LinkContext> context, int worker,
                                   std::shared_ptr<Channel> channel,
                                   std::weak_ptr<ConnectionListener> listener)
    : context_(std::move(context)),
      worker_(worker),
      channel_(std::move(channel)),
      listener_(std::move(listener)) {}

// --- connecting ---

void WorkerConnection::start() {
  connect();
}

void WorkerConnection::connect() {
  ConnectionId id;
  {
    MutexLock lock(mutex_);
    if (stage_ == Stage::kEnded) return;
    id = id_;
  }
  say_hello(*channel_, {.deadline = after(kConnectTimeout), .wait_for_ready = true},
            [self = shared_from_this(), id](const absl::StatusOr<Hello>& hello) {
              self->on_hello(id, hello);
            });
}

void WorkerConnection::on_hello(ConnectionId id, const absl::StatusOr<Hello>& hello) {
  if (!hello.ok()) return try_again(id, hello.status());
  CallOptions options{.deadline = after(kConnectTimeout), .incarnation = hello->incarnation};
  {
    MutexLock lock(mutex_);
    if (id != id_) return;
    incarnation_ = hello->incarnation;
    options.stop = stop_.get_token();
  }
  channel_->call(kConnectCoordinator, make_message(context_->introduction), options,
                 [self = shared_from_this(), id](const Response& response) {
                   self->on_response(id, response);
                 });
}

void WorkerConnection::on_response(ConnectionId id, const Response& response) {
  auto answer = response.ok() ? parse_body<ConnectCoordinatorResponse>(*response)
                              : absl::StatusOr<ConnectCoordinatorResponse>(response.status());
  if (!answer.ok()) {
    if (!context_->servers->is_server_failure(answer.status()))
      return try_again(id, answer.status());
    return context_->servers->check_server(
        answer.status(), [self = shared_from_this(), id, error = answer.status()](bool lost) {
          if (!lost) self->try_again(id, error);
        });
  }
  EstablishedConnection established{.id = id, .is_known = answer->known()};
  {
    MutexLock lock(mutex_);
    if (id != id_ || stage_ != Stage::kDown) return;
    if (failures_ > 0) log_info(channel_->task(), " is connected");
    stage_ = Stage::kUp;
    was_up_ = true;
    logged_failure_.clear();
    established.incarnation = incarnation_;
    established.stop = stop_.get_token();
  }
  if (const auto listener = listener_.lock()) listener->on_connected(established);
}

void WorkerConnection::try_again(ConnectionId id, const absl::Status& error) {
  Duration delay;
  bool refused;
  {
    MutexLock lock(mutex_);
    if (id != id_ || stage_ != Stage::kDown) return;
    ++failures_;
    // WorkerLinks reports the workers that do not answer, all in one line.
    if (error_code(error) != ErrorCode::kDeadlineExceeded && logged_failure_ != error.message()) {
      logged_failure_ = std::string(error.message());
      log_warning(channel_->task(), " cannot be used yet: ", describe(error));
    }
    refused = !was_up_ && (error_code(error) == ErrorCode::kPermissionDenied ||
                           error_code(error) == ErrorCode::kUnauthenticated);
    delay = reconnect_delays().delay_before(failures_ + 1);
  }
  // Waiting does not change the client program's role or certificate, so the error is final. But a
  // worker that was up before may have been restarted with the wrong certificates: it counts as
  // lost, and the other workers go on.
  if (refused) return context_->queue->close(error);
  connect_after(delay);
}

void WorkerConnection::connect_after(Duration delay) {
  run_at(after(delay), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->connect();
  });
}

bool WorkerConnection::is_up() const {
  MutexLock lock(mutex_);
  return stage_ == Stage::kUp;
}

bool WorkerConnection::was_ever_up() const {
  MutexLock lock(mutex_);
  return was_up_;
}

void WorkerConnection::note_progress() {
  MutexLock lock(mutex_);
  failures_ = losses_in_a_row_ = 0;
}

// --- health checks ---

void WorkerConnection::watch() {
  if (watched_.load(std::memory_order_relaxed) || watched_.exchange(true)) return;
  check_health_at(after(kHealthCheckInterval));
}

void WorkerConnection::check_health_at(Time time) {
  run_at(time, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->check_health();
  });
}

void WorkerConnection::check_health() {
  // Cleared before has_work() is called: if the listener gets work right after it returned false,
  // the watch() that follows must plan a new check.
  watched_ = false;
  ConnectionId id;
  uint64_t incarnation;
  {
    MutexLock lock(mutex_);
    if (stage_ != Stage::kUp) return;
    id = id_;
    incarnation = incarnation_;
  }
  // Called after the id is read: a listener that has work now knows connection `id`.
  const auto listener = listener_.lock();
  if (listener == nullptr || !listener->has_work()) return;
  if (watched_.exchange(true)) return;  // watch() has planned a new check meanwhile.
  const Time due = last_answer_.load(std::memory_order_relaxed) + kHealthCheckInterval;
  if (Clock::real().now() < due) return check_health_at(due);
  listener->on_silence();
  context_->health_checker->check(channel_, incarnation, {.limit = after(kHealthCheckTimeout)},
                                  [self = shared_from_this(), id](const absl::Status& answer) {
                                    if (indicates_lost_task(answer)) self->lose(id, answer);
                                    self->watched_ = false;
                                    if (self->is_up()) self->watch();
                                  });
}

// --- losing and ending the connection ---

std::stop_source WorkerConnection::begin_next(Stage stage) {
  stage_ = stage;
  ++id_;
  return std::exchange(stop_, std::stop_source());
}

void WorkerConnection::lose(ConnectionId id, const absl::Status& why) {
  ConnectionLoss loss{.id = id, .why = why};
  std::stop_source stop(std::nostopstate);
  {
    MutexLock lock(mutex_);
    if (id != id_ || stage_ != Stage::kUp) return;
    stop = begin_next(Stage::kDown);
    ++failures_;
    loss.losses_in_a_row = ++losses_in_a_row_;
    loss.backoff = backoff_after(losses_in_a_row_);
  }
  if (const auto listener = listener_.lock()) listener->on_lost(loss);
  stop.request_stop();  // In case the worker is alive after all, its closures should stop.
  connect_after(loss.backoff);
}

void WorkerConnection::end() {
  CallOptions options{.deadline = after(kDisconnectTimeout)};
  std::stop_source stop(std::nostopstate);
  bool was_up;
  {
    MutexLock lock(mutex_);
    was_up = stage_ == Stage::kUp;
    options.incarnation = incarnation_;
    stop = begin_next(Stage::kEnded);
  }
  stop.request_stop();
  if (!was_up) return;
  DisconnectCoordinatorRequest request;
  request.set_coordinator(context_->introduction.coordinator());
  channel_->call(kDisconnectCoordinator, make_message(request), options, [](const Response&) {});
}

}  // namespace trireme::internal
