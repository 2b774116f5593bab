#include "trireme/coordinator/worker_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/coordinator/element_shapes.h"
#include "trireme/coordinator/user_code.h"
#include "trireme/data/dataset_data.h"
#include "trireme/placement/cutter.h"
#include "trireme/rpc/async_hello.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// While one is on its way the other runs.
constexpr size_t kBatchesInFlight = 2;

constexpr Duration kHelloTime = seconds(10);
constexpr Duration kSupplyTime = std::chrono::minutes(5);
// A closure may run for hours; whether its worker is there is asked apart.
constexpr Duration kRunTime = std::chrono::hours(24 * 7);
constexpr Duration kLifeInterval = seconds(1);
constexpr Duration kLifePatience = seconds(3);
// Of a parameter server that is there but did not answer a worker.
constexpr int kMostServerFailures = 10;
constexpr int kMostRefusals = 5;
constexpr int kMostCaptures = 64;  // of one closure

RetryPolicy reconnect_delays() {
  return {.first_delay = milliseconds(50), .longest_delay = seconds(1)};
}

// Of a worker that was lost so often in a row: who keeps failing gets ever fewer closures to fail
// with.
Duration set_aside_for(int losses) {
  constexpr int kForgiven = 2;
  constexpr Duration kLongest = seconds(60);
  if (losses <= kForgiven) return milliseconds(50);
  return std::min<Duration>(seconds(1 << std::min(losses - kForgiven - 1, 6)), kLongest);
}

}  // namespace

WorkerLink::WorkerLink(std::shared_ptr<const LinkContext> context, int worker,
                       std::shared_ptr<Channel> channel,
                       std::function<void(uint64_t)> cancel_all_below)
    : context_(std::move(context)),
      worker_(worker),
      channel_(std::move(channel)),
      cancel_all_below_(std::move(cancel_all_below)) {}

void WorkerLink::start() {
  connect();
}

CallOptions WorkerLink::call_options(Time deadline) {
  return {.deadline = deadline, .incarnation = incarnation_, .stop = stop_.get_token()};
}

// --- connecting ---

void WorkerLink::connect() {
  Life life;
  {
    MutexLock lock(mutex_);
    if (stage_ == Stage::kEnded) return;
    life = life_;
  }
  say_hello(*channel_, {.deadline = after(kHelloTime), .wait_for_ready = true},
            [self = shared_from_this(), life](const absl::StatusOr<Hello>& hello) {
              self->on_hello(life, hello);
            });
}

void WorkerLink::on_hello(Life life, const absl::StatusOr<Hello>& hello) {
  if (!hello.ok()) return try_again(life, hello.status());
  CallOptions options;
  {
    MutexLock lock(mutex_);
    if (life != life_) return;
    incarnation_ = hello->incarnation;
    options = call_options(after(kHelloTime));
  }
  channel_->call(kConnectCoordinator, make_message(context_->introduction), options,
                 [self = shared_from_this(), life](const Response& response) {
                   self->on_connected(life, response);
                 });
}

void WorkerLink::on_connected(Life life, const Response& response) {
  auto answer = response.ok() ? parse_body<ConnectCoordinatorResponse>(*response)
                              : absl::StatusOr<ConnectCoordinatorResponse>(response.status());
  if (!answer.ok()) {
    if (!context_->servers->concerns(answer.status())) return try_again(life, answer.status());
    return context_->servers->ask(
        answer.status(), [self = shared_from_this(), life, error = answer.status()](bool lost) {
          if (!lost) self->try_again(life, error);
        });
  }
  {
    MutexLock lock(mutex_);
    if (life != life_ || stage_ != Stage::kDown) return;
    if (!answer->known()) {
      programs_.clear();
      resources_.clear();
    }
    if (failures_ > 0) log_info(channel_->task(), " is back");
    stage_ = Stage::kUp;
    was_up_ = true;
    failure_.clear();
  }
  pump();
}

void WorkerLink::try_again(Life life, const absl::Status& error) {
  Duration delay;
  bool refused;
  {
    MutexLock lock(mutex_);
    if (life != life_ || stage_ != Stage::kDown) return;
    ++failures_;
    // WorkerLinks tells of workers that do not answer, all in one line.
    if (error_code(error) != ErrorCode::kDeadlineExceeded && failure_ != error.message()) {
      failure_ = std::string(error.message());
      log_warning(channel_->task(), " cannot be used yet: ", describe(error));
    }
    refused = !was_up_ && (error_code(error) == ErrorCode::kPermissionDenied ||
                           error_code(error) == ErrorCode::kUnauthenticated);
    delay = reconnect_delays().delay_before(failures_ + 1);
  }
  // Waiting does not change the program's role or certificate. A worker that was up before may have
  // been started again with the wrong certificates: it counts as lost, and the others go on.
  if (refused) return context_->queue->close(error);
  connect_after(delay);
}

bool WorkerLink::is_up() const {
  MutexLock lock(mutex_);
  return stage_ == Stage::kUp;
}

bool WorkerLink::was_ever_up() const {
  MutexLock lock(mutex_);
  return was_up_;
}

void WorkerLink::connect_after(Duration delay) {
  run_at(after(delay), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->connect();
  });
}

// --- running ---

bool WorkerLink::on_closures() {
  {
    MutexLock lock(mutex_);
    waits_for_closures_ = false;
    if (stage_ != Stage::kUp) return false;
  }
  return pump();
}

bool WorkerLink::pump() {
  bool took = false;
  for (;;) {
    Order order;
    std::vector<ClosurePtr> cancelled;
    {
      MutexLock lock(mutex_);
      if (stage_ != Stage::kUp || supplying_) return took;
      if (next_.empty()) {
        if (in_flight_.size() >= kBatchesInFlight) return took;
        next_ = std::exchange(captured_again_, {});
      }
      if (next_.empty()) {
        if (waits_for_closures_) return took;
        next_ = context_->queue->take(shared_from_this());
        waits_for_closures_ = next_.empty();
        if (waits_for_closures_) return took;
        took = true;
      }
      order.life = life_;
      last_program_ = next_[0]->program;
      if (context_->queue->cancels()) {
        cancelled = std::exchange(next_, {});
      } else {
        find_missing(order);
        supplying_ = order.program != nullptr || order.resource != nullptr;
        if (!supplying_) {
          order.batch = next_batch_++;
          order.closures = std::exchange(next_, {});
          in_flight_[order.batch] = {order.closures, Clock::real().now()};
          batches_ = in_flight_.size();
        }
        order.options = call_options(after(supplying_ ? kSupplyTime : kRunTime));
        watch_life();
      }
    }
    // Outside of the lock: a call that cannot be made calls back in place.
    if (!cancelled.empty()) {
      context_->queue->put_back(cancelled);
    } else if (order.batch == 0) {
      supply(order);
      return took;
    } else {
      send(order);
    }
  }
}

void WorkerLink::find_missing(Order& order) {
  for (const ClosurePtr& closure : next_) {
    if (!programs_.contains(closure->current->id)) {
      order.program = closure->current;
      return;
    }
    if (closure->resources.empty()) continue;
    for (const auto& variant : closure->current->variants.get()) {
      if (programs_.contains(variant->id)) continue;
      order.program = variant;
      return;
    }
    for (const auto& resource : closure->resources) {
      if (resources_.contains(resource->id())) continue;
      order.resource = resource;
      return;
    }
  }
}

void WorkerLink::supply(const Order& order) {
  const auto supplied = [self = shared_from_this(), order](const Response& response) {
    self->on_supplied(order, response);
  };
  if (order.program != nullptr) {
    Message registration = order.program->registration;
    RegisterProgramRequest dropped;
    {
      MutexLock lock(mutex_);
      for (uint32_t gone : context_->programs->gone(programs_)) {
        dropped.add_dropped(gone);
        programs_.erase(gone);
      }
    }
    registration.body += dropped.SerializeAsString();  // fields that follow are added
    return channel_->call(kRegisterProgram, registration, order.options, supplied);
  }
  const std::optional<Dataset> dataset = order.resource->dataset(worker_);
  if (!dataset) {
    return supplied(make_status(
        ErrorCode::kFailedPrecondition,
        "a closure draws from an iterator that another coordinator made, and not for this worker",
        {channel_->task(), ""}));
  }
  DatasetData data = data_of(*dataset);
  CreateResourceRequest request;
  request.set_coordinator(context_->introduction.coordinator());
  request.set_resource(order.resource->id());
  // Workers shuffle differently, and one that was replaced does not begin with the same again.
  request.set_seed(static_cast<uint64_t>(worker_) + ((order.life - 1) << 32));
  *request.mutable_dataset() = std::move(data.def);
  {
    MutexLock lock(mutex_);
    for (uint64_t gone : context_->resources->gone(resources_)) {
      request.add_dropped(gone);
      resources_.erase(gone);
    }
  }
  channel_->call(kCreateResource, make_message(request, std::move(data.tensors)), order.options,
                 supplied);
}

void WorkerLink::on_supplied(const Order& order, const Response& response) {
  std::vector<ClosurePtr> refused;
  {
    MutexLock lock(mutex_);
    if (order.life != life_) return;
    supplying_ = false;
    if (!response.ok()) {
      refused = std::exchange(next_, {});
    } else if (order.program != nullptr) {
      programs_.insert(order.program->id);
    } else {
      resources_.insert(order.resource->id());
    }
  }
  if (!response.ok()) return on_refused(order.life, std::move(refused), response.status());
  pump();
}

void WorkerLink::send(const Order& order) {
  RunClosuresRequest request;
  request.set_coordinator(context_->introduction.coordinator());
  request.set_watermark(context_->queue->watermark());
  std::vector<at::Tensor> tensors;
  uint64_t answer_bytes = 0;
  for (const ClosurePtr& closure : order.closures) {
    ClosureRequest* added = request.add_closures();
    added->set_sequence(closure->sequence);
    added->set_program(closure->current->id);
    added->set_seed(closure->seed);
    added->set_step(closure->step);
    added->set_tensors(append_defined(closure->tensors, tensors, *added->mutable_undefined()));
    uint64_t largest = closure->current->answer_bytes;
    if (!closure->resources.empty()) {
      for (const auto& resource : closure->resources) added->add_resources(resource->id());
      for (const auto& variant : closure->current->variants.get()) {
        added->add_variants(variant->id);
        largest = std::max(largest, variant->answer_bytes);
      }
    }
    if (closure->repeat > 1) added->set_repeat(closure->repeat);
    answer_bytes += std::min(largest, kSmallAnswer + 1);
  }
  CallOptions options = order.options;
  options.large_response = answer_bytes > kSmallAnswer;
  channel_->call(kRunClosures, make_message(request, std::move(tensors)), options,
                 [self = shared_from_this(), life = order.life, batch = order.batch](
                     const Response& response) { self->on_answer(life, batch, response); });
}

void WorkerLink::on_answer(Life life, uint64_t batch, const Response& response) {
  std::vector<ClosurePtr> closures;
  Duration waited;
  const Time now = Clock::real().now();
  {
    MutexLock lock(mutex_);
    if (life != life_) return;
    Batch answered = std::move(in_flight_.extract(batch).mapped());
    batches_ = in_flight_.size();
    closures = std::move(answered.closures);
    waited = now - answered.sent;
    if (response.ok()) heard_ = now;
  }
  auto answer = response.ok() ? parse_body<RunClosuresResponse>(*response)
                              : absl::StatusOr<RunClosuresResponse>(response.status());
  if (!answer.ok()) return on_refused(life, std::move(closures), answer.status());
  if (answer->results_size() != static_cast<int>(closures.size())) {
    return on_refused(life, std::move(closures),
                      make_status(ErrorCode::kInternal, "a worker answered for other closures",
                                  {channel_->task(), ""}));
  }
  constexpr uint64_t kLongest = 24ull * 3600 * 1'000'000;
  note_times(closures,
             std::chrono::microseconds(std::min<uint64_t>(answer->microseconds(), kLongest)),
             waited);
  std::vector<ClosureQueue::Finished> finished;
  std::vector<ClosurePtr> given_back;
  std::vector<ClosurePtr> without_server;
  absl::Status server_error;
  TensorReader reader(response->tensors);
  for (int i = 0; i < answer->results_size(); ++i) {
    ClosurePtr& closure = closures[i];
    if (!answer->results(i).drawn().empty()) {
      on_drawn(life, std::move(closure), answer->results(i));
      continue;
    }
    ClosureOutcome outcome = outcome_of(answer->results(i), reader);
    if (!outcome.ok() && context_->servers->concerns(outcome.status())) {
      server_error = outcome.status();
      without_server.push_back(std::move(closure));
    } else if (!outcome.ok() && error_code(outcome.status()) == ErrorCode::kCancelled) {
      given_back.push_back(std::move(closure));  // the worker ends, or the queue cancels them
    } else {
      finished.push_back({std::move(closure), std::move(outcome)});
    }
  }
  if (!finished.empty()) {
    MutexLock lock(mutex_);
    failures_ = losses_in_a_row_ = 0;
    closures_done_ += finished.size();
  }
  finish(std::move(finished));
  context_->queue->put_back(given_back);
  if (!without_server.empty()) after_server_failure(server_error, std::move(without_server));
  pump();
}

// It drew elements that its program does not take: it waits, in nobody's hands, until a thread of
// the user has captured the function for them.
void WorkerLink::on_drawn(Life life, ClosurePtr closure, const ClosureResult& result) {
  DrawnShapes drawn;
  absl::Status error;
  if (result.drawn_size() != static_cast<int>(closure->resources.size())) {
    error = make_status(ErrorCode::kInternal, "the worker drew from other iterators",
                        {channel_->task(), ""});
  } else if (++closure->captures > kMostCaptures) {
    error = make_status(
        ErrorCode::kFailedPrecondition,
        "what it draws from its iterators depends on what it has drawn before; draw the same "
        "number of elements whatever their shapes are",
        {channel_->task(), absl::StrCat("function '", closure->program->function, "'")});
  }
  for (int i = 0; i < result.drawn_size() && error.ok(); ++i) {
    std::vector<ElementSpec>& elements = drawn[closure->resources[i]->id()];
    for (const ElementShape& shape : result.drawn(i).elements()) {
      auto spec = spec_of(shape);
      if (!spec.ok()) error = spec.status();
      if (spec.ok()) elements.push_back(*std::move(spec));
    }
  }
  if (!error.ok()) return finish({{std::move(closure), error}});
  context_->queue->add_errand(closure,
                              [self = shared_from_this(), life, closure, drawn = std::move(drawn)] {
                                self->capture_again(life, closure, drawn);
                              });
}

void WorkerLink::capture_again(Life life, const ClosurePtr& closure, const DrawnShapes& drawn) {
  if (context_->queue->cancels()) return context_->queue->put_back({closure});
  const absl::Status captured =
      try_call([&] { call_user_code([&] { closure->capture_again(drawn); }); });
  if (!captured.ok()) {
    return finish(
        {{closure, with_origin(captured, {"", absl::StrCat("function '", closure->program->function,
                                                           "'")})}});
  }
  bool current;
  {
    MutexLock lock(mutex_);
    current = life == life_;
    if (current) captured_again_.push_back(closure);
  }
  if (!current) return context_->queue->put_back({closure});
  pump();
}

// The worker did not run them at all.
void WorkerLink::on_refused(Life life, std::vector<ClosurePtr> closures,
                            const absl::Status& error) {
  if (context_->servers->concerns(error)) {
    after_server_failure(error, std::move(closures));
    pump();
    return;
  }
  const ErrorCode code = error_code(error);
  // What it does not know it is told again; where it has no room another may. But not for ever.
  const bool may_pass = code == ErrorCode::kNotFound || code == ErrorCode::kResourceExhausted;
  const bool lost_it = may_pass || says_gone(error) || code == ErrorCode::kCancelled;
  if (code == ErrorCode::kNotFound) {
    MutexLock lock(mutex_);
    programs_.clear();
    resources_.clear();
  }
  context_->queue->put_back(fail_those(std::move(closures), error, [&](Closure& closure) {
    return !lost_it || (may_pass && ++closure.refusals >= kMostRefusals);
  }));
  if (lost_it) return lost(life, error);
  pump();
}

void WorkerLink::after_server_failure(const absl::Status& error, std::vector<ClosurePtr> closures) {
  closures = fail_those(std::move(closures), error, [](Closure& closure) {
    return ++closure.server_failures >= kMostServerFailures;
  });
  context_->servers->ask(error, [queue = context_->queue, closures = std::move(closures)](bool) {
    // A lost server has closed the queue, which then cancels them.
    run_at(after(milliseconds(100)), [queue, closures] { queue->put_back(closures); });
  });
}

std::vector<ClosurePtr> WorkerLink::fail_those(std::vector<ClosurePtr> closures,
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

void WorkerLink::finish(std::vector<ClosureQueue::Finished> finished) {
  const uint64_t cancelled_below = context_->queue->finish(std::move(finished));
  if (cancelled_below > 0) cancel_all_below_(cancelled_below);
}

void WorkerLink::cancel_below(uint64_t sequence) {
  CallOptions options;
  {
    MutexLock lock(mutex_);
    if (stage_ != Stage::kUp || in_flight_.empty()) return;
    options = call_options(after(kHelloTime));
  }
  CancelClosuresRequest request;
  request.set_coordinator(context_->introduction.coordinator());
  request.set_below(sequence);
  channel_->call(kCancelClosures, make_message(request), options, [](const Response&) {});
}

WorkerState WorkerLink::state() const {
  MutexLock lock(mutex_);
  WorkerState state{.task = {"worker", worker_},
                    .up = stage_ == Stage::kUp,
                    .slow = context_->stragglers->is_slow(worker_),
                    .closures_done = closures_done_,
                    .closures_there = next_.size() + captured_again_.size(),
                    .losses = losses_};
  for (const auto& [number, batch] : in_flight_) state.closures_there += batch.closures.size();
  return state;
}

// --- losing it ---

// Of closures that came back: how long they kept the worker busy, and how long they were away.
void WorkerLink::note_times(const std::vector<ClosurePtr>& closures, Duration busy,
                            Duration waited) {
  uint64_t runs = 0;
  for (const ClosurePtr& closure : closures) runs += closure->repeat;
  const ClosureProgram* noted = nullptr;
  for (const ClosurePtr& closure : closures) {
    const ClosureProgram& program = *closure->program;
    program.cost.note(busy / runs);
    if (std::exchange(noted, &program) == &program) continue;
    context_->stragglers->note(worker_, program.id, program.function, {busy / runs, waited / runs});
  }
}

// A worker may be so slow that nothing comes back that could be noted.
void WorkerLink::watch_speed() {
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
  Duration elsewhere = {};
  for (const ClosurePtr& closure : closures) {
    const Duration once = context_->stragglers->elsewhere(worker_, closure->program->id).away;
    if (once == Duration()) return;  // nobody knows
    elsewhere += once * closure->repeat;
  }
  context_->stragglers->note_waiting(worker_, closures[0]->program->function,
                                     Clock::real().now() - since, elsewhere);
}

void WorkerLink::watch_life() {
  if (std::exchange(watched_, true)) return;
  run_at(after(kLifeInterval), [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->ask_life();
  });
}

void WorkerLink::ask_life() {
  Life life;
  uint64_t incarnation;
  {
    MutexLock lock(mutex_);
    if (stage_ != Stage::kUp || (in_flight_.empty() && next_.empty())) {
      watched_ = false;
      return;
    }
    life = life_;
    incarnation = incarnation_;
    // Answers are signs of life too.
    if (Clock::real().now() - heard_ < kLifeInterval) {
      watched_ = false;
      return watch_life();
    }
  }
  watch_speed();
  context_->life_signs->ask(channel_, incarnation, after(kLifePatience),
                            [self = shared_from_this(), life](const absl::Status& answer) {
                              if (says_gone(answer)) self->lost(life, answer);
                              MutexLock lock(self->mutex_);
                              self->watched_ = false;
                              if (self->stage_ == Stage::kUp) self->watch_life();
                            });
}

// What was under way, to be given back; the next life begins.
std::vector<ClosurePtr> WorkerLink::begin_next_life(Stage stage, std::stop_source& stop) {
  std::vector<ClosurePtr> closures;
  for (const auto& [number, batch] : in_flight_) {
    closures.insert(closures.end(), batch.closures.begin(), batch.closures.end());
  }
  for (std::vector<ClosurePtr>* waiting : {&next_, &captured_again_}) {
    closures.insert(closures.end(), waiting->begin(), waiting->end());
    waiting->clear();
  }
  in_flight_.clear();
  batches_ = 0;
  supplying_ = false;
  stage_ = stage;
  ++life_;
  stop = std::exchange(stop_, std::stop_source());
  return closures;
}

void WorkerLink::lost(Life life, const absl::Status& why) {
  std::vector<ClosurePtr> closures;
  std::stop_source stop;
  Duration delay;
  {
    MutexLock lock(mutex_);
    if (life != life_ || stage_ != Stage::kUp) return;
    closures = begin_next_life(Stage::kDown, stop);
    ++failures_;
    ++losses_;
    delay = set_aside_for(++losses_in_a_row_);
    if (delay < seconds(1) || last_program_ == nullptr) {
      log_warning(channel_->task(), " is lost, its closures run elsewhere: ", describe(why));
    } else {
      log_warning(channel_->task(), " was lost ", losses_in_a_row_,
                  " times without having run a closure of function '", last_program_->function,
                  "'; it is set aside for ", delay / seconds(1),
                  " s. Its own log tells why: ", describe(why));
    }
  }
  context_->stragglers->forget(worker_);
  context_->queue->put_back(closures);
  stop.request_stop();  // a worker that is there after all should not go on
  connect_after(delay);
}

void WorkerLink::end() {
  std::vector<ClosurePtr> closures;
  std::stop_source stop;
  CallOptions options{.deadline = after(seconds(2))};
  bool up;
  {
    MutexLock lock(mutex_);
    up = stage_ == Stage::kUp;
    options.incarnation = incarnation_;
    closures = begin_next_life(Stage::kEnded, stop);
  }
  context_->queue->put_back(closures);
  stop.request_stop();
  if (!up) return;
  DisconnectCoordinatorRequest request;
  request.set_coordinator(context_->introduction.coordinator());
  channel_->call(kDisconnectCoordinator, make_message(request), options, [](const Response&) {});
}

}  // namespace trireme::internal
