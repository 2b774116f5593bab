#include "trireme/coordinator/closure_dispatcher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_results.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/coordinator/element_shapes.h"
#include "trireme/coordinator/user_code.h"
#include "trireme/rpc/timer.h"

// The protocol with one worker. dispatch() repeats these steps until the worker has two batches:
//
//   1. next_ = closures captured again, or a batch from the queue
//   2. Register or Create, one call at a time, until the worker has all that next_ needs
//   3. Run: next_ becomes a batch in flight
//
// Every event that may allow progress calls dispatch(): a connection, new closures, an answer.
//
// Each closure that was taken is returned to the queue exactly once: by the thread that removes it,
// under the lock, from in_flight_, next_ or captured_again_. disconnect() empties all three, and
// later answers to calls of that connection fail is_current() and are ignored.
//
// An answer has one of these outcomes for a closure:
//   - a result or an error of the function: finished;
//   - CANCELLED: requeued, which cancels it if the queue is cancelling;
//   - a parameter server did not answer the worker, or rejected its push: requeued after a check of
//     that server;
//   - elements of new shapes: kept in flight until the user's thread has captured the function;
//   - the end of a range of a shared dataset: requeued, to be sent with other elements;
//   - the whole call failed: requeued if the worker is lost or may accept it later, else failed.
// Counters in the closure limit retries after refusals and captures. The others are not limited:
// the job goes on as long as its parameter servers answer the coordinator.
//
// A worker may be cut off from a server that answers everyone else. It is idle whenever the others
// are busy, so it would get the same closures again and again. Therefore it backs off
// (route_backoff.h), and each closure remembers where it has failed and goes to another worker, if
// one is connected (avoided_workers.h).
namespace trireme::internal {
namespace {

// Maximum number of batches that a worker has: it runs one while the next is on its way.
constexpr size_t kBatchesInFlight = 2;

constexpr Duration kSupplyTimeout = std::chrono::minutes(5);
// A closure may run for hours; health checks detect that its worker is lost.
constexpr Duration kRunTimeout = std::chrono::hours(24 * 7);
constexpr Duration kCancelTimeout = std::chrono::seconds(10);
// Limits for each closure, after which it fails.
constexpr int kMostRefusals = 5;
constexpr int kMostCaptures = 64;

}  // namespace

std::shared_ptr<ClosureDispatcher> ClosureDispatcher::create(
    std::shared_ptr<const LinkContext> context, int worker, std::shared_ptr<Channel> channel,
    std::function<void(uint64_t)> cancel_all_below) {
  const std::shared_ptr<ClosureDispatcher> dispatcher(new ClosureDispatcher(
      std::move(context), worker, std::move(channel), std::move(cancel_all_below)));
  dispatcher->connection_ = std::make_shared<WorkerConnection>(dispatcher->context_, worker,
                                                               dispatcher->channel_, dispatcher);
  return dispatcher;
}

ClosureDispatcher::ClosureDispatcher(std::shared_ptr<const LinkContext> context, int worker,
                                     std::shared_ptr<Channel> channel,
                                     std::function<void(uint64_t)> cancel_all_below)
    : context_(std::move(context)),
      worker_(worker),
      channel_(std::move(channel)),
      cancel_all_below_(std::move(cancel_all_below)) {}

CallOptions ClosureDispatcher::call_options(Duration timeout) const {
  return {.deadline = after(timeout),
          .incarnation = connection_in_use_->incarnation,
          .stop = connection_in_use_->stop};
}

// --- the connection ---

void ClosureDispatcher::on_connected(const EstablishedConnection& connection) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    connection_in_use_ = connection;
    if (!connection.is_known) {
      inventory_.clear();
      backoff_.reset();
    }
    context_->queue->add_worker(worker_);
  }
  dispatch();
}

ClosureDispatcher::Returned ClosureDispatcher::disconnect() {
  Returned closures{.unsent = std::exchange(next_, {})};
  for (const auto& [number, batch] : in_flight_) {
    closures.sent.insert(closures.sent.end(), batch.closures.begin(), batch.closures.end());
  }
  closures.sent.insert(closures.sent.end(), captured_again_.begin(), captured_again_.end());
  captured_again_.clear();
  in_flight_.clear();
  batches_ = 0;
  supplying_ = false;
  connection_in_use_.reset();
  return closures;
}

void ClosureDispatcher::requeue(const Returned& closures) {
  return_elements_of_unsent(closures.unsent);
  context_->queue->put_back_unpushed(closures.unsent);
  context_->queue->put_back(closures.sent);
}

void ClosureDispatcher::on_lost(const ConnectionLoss& loss) {
  Returned closures;
  {
    MutexLock lock(mutex_);
    if (!is_current(loss.id)) return;
    closures = disconnect();
    ++losses_;
    if (loss.backoff < std::chrono::seconds(1) || last_function_ == nullptr) {
      log_warning(channel_->task(), " is lost, its closures are requeued: ", describe(loss.why));
    } else {
      log_warning(channel_->task(), " was lost ", loss.losses_in_a_row,
                  " times without having run a closure of function '", last_function_->name,
                  "'; the coordinator backs off for ", loss.backoff / std::chrono::seconds(1),
                  " s. See the worker's own log for the cause: ", describe(loss.why));
    }
  }
  context_->stragglers->forget(worker_);
  context_->queue->remove_worker(worker_);
  context_->resources->release_worker(worker_);
  requeue(closures);
}

void ClosureDispatcher::end() {
  Returned closures;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    closures = disconnect();
  }
  context_->queue->remove_worker(worker_);
  requeue(closures);
  connection_->end();
}

bool ClosureDispatcher::has_work() const {
  MutexLock lock(mutex_);
  return !in_flight_.empty() || !next_.empty();
}

// --- sending ---

bool ClosureDispatcher::on_closures() {
  {
    MutexLock lock(mutex_);
    waits_for_closures_ = false;
    if (!connection_in_use_) return false;
  }
  return dispatch();
}

bool ClosureDispatcher::dispatch() {
  bool took = false;
  for (;;) {
    Order order;
    std::vector<ClosurePtr> cancelled;
    AllottedClosures allotted;
    {
      MutexLock lock(mutex_);
      if (!connection_in_use_ || supplying_) return took;
      const bool on_trial = backoff_.on_trial();
      if (next_.empty()) {
        if (in_flight_.size() >= (on_trial ? 1 : kBatchesInFlight)) return took;
        next_ = std::exchange(captured_again_, {});
      }
      if (next_.empty()) {
        if (waits_for_closures_) return took;
        if (on_trial && backoff_.backs_off(Clock::real().now())) return took;
        next_ = context_->queue->take(shared_from_this(), ClosureQueue::kBatchTime,
                                      on_trial ? 1 : ClosureQueue::kBatchClosures);
        waits_for_closures_ = next_.empty();
        if (waits_for_closures_) return took;
        took = true;
      }
      order.connection = connection_in_use_->id;
      last_function_ = next_[0]->function;
      if (context_->queue->is_given_up(next_)) {
        cancelled = std::exchange(next_, {});
      } else {
        allotted = allot_elements(std::exchange(next_, {}), worker_,
                                  [queue = context_->queue](const ClosurePtr& closure) {
                                    queue->put_back_unpushed({closure});
                                  });
        next_ = std::move(allotted.ready);
      }
      if (!next_.empty()) {
        order.missing = inventory_.first_missing(next_);
        supplying_ = !order.missing.empty();
        if (!supplying_) {
          order.batch = next_batch_++;
          // Made under the lock: once the connection is lost, another worker may run the closures,
          // which releases their tensors.
          const uint64_t before = in_flight_.empty() ? 0 : in_flight_.rbegin()->first;
          order.run =
              run_request(context_->introduction.coordinator(), context_->queue->watermark(),
                          {.batch = order.batch, .after = before}, next_);
          in_flight_[order.batch] = {std::exchange(next_, {}), Clock::real().now()};
          batches_ = in_flight_.size();
        }
        order.options = call_options(supplying_ ? kSupplyTimeout : kRunTimeout);
      }
    }
    // Outside of the lock, because a call that cannot be made runs its callback in place.
    requeue({.unsent = std::move(cancelled)});
    finish_ended(allotted);
    if (!order.has_call()) continue;
    connection_->watch();
    if (order.batch == 0) {
      supply(order);
      return took;
    }
    send(std::move(order));
  }
}

void ClosureDispatcher::finish_ended(const AllottedClosures& allotted) {
  std::vector<ClosureQueue::Finished> finished;
  for (const auto& [closure, draw] : allotted.ended) {
    finished.push_back({closure, result_at_end(*closure, draw, no_more_elements(*closure, draw))});
  }
  if (!finished.empty()) finish(std::move(finished));
  // An error may have cancelled all closures before these began to wait.
  if (!allotted.waiting.empty() && context_->queue->is_given_up(allotted.waiting)) {
    context_->resources->notify();
  }
}

void ClosureDispatcher::supply(const Order& order) {
  const auto supplied = [self = shared_from_this(), order](const Response& response) {
    self->on_supplied(order, response);
  };
  if (order.missing.function != nullptr) {
    std::vector<uint32_t> dropped;
    {
      MutexLock lock(mutex_);
      dropped = inventory_.drop_unused_functions(*context_->functions);
    }
    return channel_->call(kRegisterFunction, register_request(*order.missing.function, dropped),
                          order.options, supplied);
  }
  ResourceRequest request{.coordinator = context_->introduction.coordinator(),
                          .worker = order.missing.worker};
  {
    MutexLock lock(mutex_);
    request.dropped = inventory_.drop_unused_resources(*context_->resources);
  }
  absl::StatusOr<Message> message = create_request(request, *order.missing.account);
  if (!message.ok()) return supplied(with_origin(message.status(), {channel_->task(), ""}));
  channel_->call(kCreateResource, *std::move(message), order.options, supplied);
}

void ClosureDispatcher::on_supplied(const Order& order, const Response& response) {
  std::vector<ClosurePtr> refused;
  {
    MutexLock lock(mutex_);
    if (!is_current(order.connection)) return;
    supplying_ = false;
    if (response.ok()) {
      inventory_.add(order.missing);
    } else {
      refused = std::exchange(next_, {});
    }
  }
  if (!response.ok()) {
    return_elements_of_unsent(refused);
    return on_refused(order.connection, std::move(refused), response.status());
  }
  dispatch();
}

void ClosureDispatcher::send(Order order) {
  order.options.large_response = order.run.large_response;
  channel_->call(kRunClosures, std::move(order.run.message), order.options,
                 [self = shared_from_this(), connection = order.connection, batch = order.batch](
                     const Response& response) { self->on_answer(connection, batch, response); });
}

void ClosureDispatcher::cancel_below(uint64_t sequence, bool before_push) {
  CallOptions options;
  {
    MutexLock lock(mutex_);
    if (!connection_in_use_ || in_flight_.empty()) return;
    options = call_options(kCancelTimeout);
  }
  CancelClosuresRequest request;
  request.set_coordinator(context_->introduction.coordinator());
  request.set_below(sequence);
  request.set_before_push(before_push);
  channel_->call(kCancelClosures, make_message(request), options, [](const Response&) {});
}

// --- handling answers ---

void ClosureDispatcher::on_answer(ConnectionId connection, uint64_t batch,
                                  const Response& response) {
  std::vector<ClosurePtr> closures;
  Duration waited;
  const Time now = Clock::real().now();
  auto answer = response.ok() ? parse_body<RunClosuresResponse>(*response)
                              : absl::StatusOr<RunClosuresResponse>(response.status());
  {
    MutexLock lock(mutex_);
    if (!is_current(connection)) return;
    Batch answered = std::move(in_flight_.extract(batch).mapped());
    batches_ = in_flight_.size();
    closures = std::move(answered.closures);
    waited = now - answered.sent;
  }
  if (response.ok()) connection_->note_answer(now);
  if (!answer.ok()) return on_refused(connection, std::move(closures), answer.status());
  if (answer->results_size() != static_cast<int>(closures.size())) {
    return on_refused(
        connection, std::move(closures),
        make_status(ErrorCode::kInternal,
                    "the worker answered for a different number of closures than it was sent",
                    {channel_->task(), ""}));
  }
  constexpr uint64_t kLongest = 24ull * 3600 * 1'000'000;
  note_times(closures_that_ran(closures, *answer),
             std::chrono::microseconds(std::min<uint64_t>(answer->microseconds(), kLongest)),
             waited);
  on_results(connection, std::move(closures), *answer, response->tensors);
  dispatch();
}

void ClosureDispatcher::on_results(ConnectionId connection, std::vector<ClosurePtr> closures,
                                   const RunClosuresResponse& answer,
                                   const std::vector<at::Tensor>& tensors) {
  ClosureResults sorted =
      sort_results(std::move(closures), answer, tensors, *context_->servers, channel_->task());
  for (auto& [closure, response] : sorted.drawn) {
    on_drawn(connection, std::move(closure), *response);
  }
  if (!sorted.finished.empty()) {
    connection_->note_progress();
    closures_done_.fetch_add(sorted.finished.size(), std::memory_order_relaxed);
    MutexLock lock(mutex_);
    backoff_.reset();
  }
  finish(std::move(sorted.finished));
  requeue({.sent = std::move(sorted.pushed), .unsent = std::move(sorted.unpushed)});
  if (!sorted.without_server.empty()) {
    after_server_failure(sorted.server_error, std::move(sorted.without_server));
  }
}

void ClosureDispatcher::on_drawn(ConnectionId connection, ClosurePtr closure,
                                 const ClosureResponse& result) {
  absl::StatusOr<DrawnShapes> drawn = parse_drawn(result, closure->resources);
  if (drawn.ok() && ++closure->captures > kMostCaptures) {
    drawn = make_status(
        ErrorCode::kFailedPrecondition,
        "the number of elements that it draws depends on the shapes of those drawn before; draw "
        "the same number of elements whatever their shapes are",
        {"", absl::StrCat("function '", closure->function->name, "'")});
  }
  if (!drawn.ok()) {
    return finish({{std::move(closure), with_origin(drawn.status(), {channel_->task(), ""})}});
  }
  // Earlier repetitions may have pushed.
  if (closure->repeat > 1) closure->may_have_pushed = true;
  context_->queue->defer_capture(
      closure, [self = shared_from_this(), connection, closure, drawn = *std::move(drawn)] {
        self->capture_again(connection, closure, drawn);
      });
}

void ClosureDispatcher::capture_again(ConnectionId connection, const ClosurePtr& closure,
                                      const DrawnShapes& drawn) {
  if (context_->queue->is_given_up({closure})) return requeue({.unsent = {closure}});
  const absl::Status captured =
      try_call([&] { call_user_code([&] { closure->capture_again(drawn); }); });
  if (!captured.ok()) {
    return finish(
        {{closure,
          with_origin(captured, {"", absl::StrCat("function '", closure->function->name, "'")})}});
  }
  bool current;
  {
    MutexLock lock(mutex_);
    current = is_current(connection);
    if (current) captured_again_.push_back(closure);
  }
  if (!current) return context_->queue->put_back({closure});
  dispatch();
}

void ClosureDispatcher::on_refused(ConnectionId connection, std::vector<ClosurePtr> closures,
                                   const absl::Status& error) {
  if (context_->servers->is_server_failure(error)) {
    after_server_failure(error, std::move(closures));
    dispatch();
    return;
  }
  const ErrorCode code = error_code(error);
  // Retry, up to a limit: a worker that has forgotten an object is supplied again, and if this one
  // has no room, another may have.
  const bool may_pass = code == ErrorCode::kNotFound || code == ErrorCode::kResourceExhausted;
  const bool lost = may_pass || indicates_lost_task(error) || code == ErrorCode::kCancelled;
  if (code == ErrorCode::kNotFound) {
    MutexLock lock(mutex_);
    inventory_.clear();
  }
  const std::vector<ClosurePtr> others = fail_if(std::move(closures), error, [&](Closure& closure) {
    return !lost || (may_pass && ++closure.refusals >= kMostRefusals);
  });
  // Before the closures are requeued, so that this worker does not take them again at once.
  if (lost) connection_->lose(connection, error);
  context_->queue->put_back(others);
  if (!lost) dispatch();
}

void ClosureDispatcher::after_server_failure(const absl::Status& error,
                                             std::vector<ClosurePtr> closures) {
  std::optional<Time> backoff_end;
  if (!context_->servers->is_rejection(error)) {
    MutexLock lock(mutex_);
    backoff_end = backoff_.note_failure(Clock::real().now());
  }
  if (backoff_end) {
    run_at(*backoff_end, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->dispatch();
    });
  }
  context_->servers->check_and_requeue(error, worker_, std::move(closures));
}

std::vector<ClosurePtr> ClosureDispatcher::fail_if(std::vector<ClosurePtr> closures,
                                                   const absl::Status& error,
                                                   const std::function<bool(Closure&)>& fails) {
  std::vector<ClosureQueue::Finished> finished;
  std::vector<ClosurePtr> others;
  for (ClosurePtr& closure : closures) {
    if (fails(*closure)) {
      finished.push_back({std::move(closure), error});
    } else {
      others.push_back(std::move(closure));
    }
  }
  finish(std::move(finished));
  return others;
}

void ClosureDispatcher::finish(std::vector<ClosureQueue::Finished> finished) {
  const uint64_t cancelled_below = context_->queue->finish(std::move(finished));
  if (cancelled_below > 0) cancel_all_below_(cancelled_below);
}

// --- the worker's speed ---

void ClosureDispatcher::note_times(const ClosuresThatRan& ran, Duration busy, Duration waited) {
  if (ran.runs == 0) return;
  for (const ClosurePtr& each : ran.closures) each->function->cost.note(busy / ran.runs);
  context_->stragglers->note_batch(worker_, ran.closures, {busy / ran.runs, waited / ran.runs});
}

void ClosureDispatcher::on_silence() {
  std::vector<ClosurePtr> closures;
  Time since;
  {
    MutexLock lock(mutex_);
    if (in_flight_.empty()) return;
    since = in_flight_.begin()->second.sent;
    for (const auto& [number, batch] : in_flight_) {
      closures.insert(closures.end(), batch.closures.begin(), batch.closures.end());
    }
  }
  context_->stragglers->note_silence(worker_, closures, Clock::real().now() - since);
}

WorkerState ClosureDispatcher::state() const {
  MutexLock lock(mutex_);
  WorkerState state{.task = {"worker", worker_},
                    .up = connection_in_use_.has_value(),
                    .slow = context_->stragglers->is_slow(worker_),
                    .closures_done = closures_done_.load(std::memory_order_relaxed),
                    .closures_there = next_.size() + captured_again_.size(),
                    .losses = losses_};
  for (const auto& [number, batch] : in_flight_) state.closures_there += batch.closures.size();
  return state;
}

}  // namespace trireme::internal
