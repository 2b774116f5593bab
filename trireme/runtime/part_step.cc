#include "trireme/runtime/part_step.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"
#include "trireme/exec/step_generator.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/worker_methods.h"

// The states of a part of a step:
//
//   new      Values may arrive and are kept. abort() ends it; start() then fails with the error.
//   running  One thread is in advance() and runs operators in captured order.
//   parked   The run needs a value that has not arrived (awaited_ is set), and no thread runs it.
//            The deliver() that brings the value resets awaited_ and lets the run advance.
//   ran      All operators have run, and the values that the part sent are still being delivered.
//   ended    The result was passed to the callback, or the step was aborted before it started.
//
// Exactly one thread may advance the run: the one that took it out of "new" or "parked", both of
// which happen under the mutex. So the state of the run itself needs no lock. abort() ends a part
// that no thread runs; otherwise it leaves the error in aborted_ and requests a stop, which the
// running thread notices before its next operator.
//
// Values are pushed by the task that computes them. A large value is sent as soon as it is
// computed; small ones for the same task are collected and sent in one call at the next flush(). A
// part does not answer before its values were delivered: an OK of all parts means that no value was
// lost.
namespace trireme::internal {
namespace {

// Smaller values wait for others that go to the same task at the same point.
constexpr size_t kSmallValue = 256 << 10;
// Shorter parts run on the thread that asks for them, because waking another thread takes as long.
constexpr Duration kInline = std::chrono::microseconds(50);

size_t bytes_of(const Pieces& pieces) {
  size_t bytes = 0;
  for (const at::Tensor& piece : pieces) bytes += piece.nbytes();
  return bytes;
}

}  // namespace

PartStep::PartStep(std::shared_ptr<RegisteredPart> part, uint64_t number, StepGauges& gauges)
    : part_(std::move(part)), number_(number), gauges_(gauges) {
  gauges_.steps.add(1);
}

// A step that has ended may outlive the worker and its gauges, because calls hold it.
PartStep::~PartStep() {
  if (ended_) return;
  gauges_.values.add(-static_cast<int64_t>(arrived_.size()));
  gauges_.steps.add(-1);
}

bool PartStep::claim() {
  MutexLock lock(mutex_);
  return !std::exchange(claimed_, true);
}

void PartStep::start(PartInputs inputs, std::vector<std::shared_ptr<HostedVariable>> variables,
                     Executor& executor, OnPartResult done) {
  absl::Status over;
  {
    MutexLock lock(mutex_);
    if (ended_) {
      over = aborted_;
    } else {
      limit_ = inputs.deadline;
      done_ = std::move(done);
    }
    started_ = true;
  }
  // The caller still waits for an answer.
  if (!over.ok()) return done(with_origin(std::move(over), {part_->task, ""}));
  variables_ = std::move(variables);
  executor_ = &executor;
  deadline_ = inputs.deadline;
  std::vector<at::Tensor> tensors;
  PartRunOptions options;
  options.stop = stop_.get_token();
  options.transfers = this;
  options.device_seed = crc32c(part_->task.data(), part_->task.size());
  options.check_write = part_->check_write;
  // The thread-safety analysis does not see that the run holds the variable's lock.
  options.before_write = [this](uint32_t variable) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    variables_[variable]->before_change();
  };
  std::vector<c10::Device> devices;
  for (const auto& variable : variables_) {
    tensors.push_back(variable->tensor);
    devices.push_back(variable->tensor.device());
    options.locks.push_back(&variable->mutex);
  }
  auto plan = part_->plan->with_variables_on(devices);
  if (!plan.ok()) return finish(plan.status());
  plan_ = *std::move(plan);
  at::Generator generator;
  if (plan_->graph->def.random()) generator = make_step_generator(inputs.seed, inputs.step);
  run_ = std::make_unique<PartRun>(plan_, std::move(tensors), std::move(generator),
                                   std::move(options));
  if (absl::Status bound = run_->bind(inputs.tensors); !bound.ok()) {
    return finish(std::move(bound));
  }
  if (inputs.stop.stop_possible()) {
    // The callback must not keep the step alive, which owns it.
    on_stop_.emplace(inputs.stop, [self = weak_from_this()] {
      if (const auto step = self.lock()) {
        step->abort(make_status(ErrorCode::kCancelled, "the step was cancelled by its caller"));
      }
    });
  }
  if (runs_inline()) {
    advance();
  } else {
    executor.submit([self = shared_from_this()] { self->advance(); });
  }
}

void PartStep::deliver(uint32_t edge, Pieces pieces) {
  bool resume = false;
  {
    MutexLock lock(mutex_);
    if (ended_ || !arrived_.emplace(edge, std::move(pieces)).second) return;
    gauges_.values.add(1);
    if (awaited_ == edge) {
      awaited_.reset();
      resume = true;
    }
  }
  if (!resume) return;
  if (runs_inline()) return advance();
  executor_->submit([self = shared_from_this()] { self->advance(); });
}

bool PartStep::runs_inline() const {
  return part_->usual_time.get() < kInline;
}

bool PartStep::is_late(Time now) {
  MutexLock lock(mutex_);
  return now > limit_ && !ended_;
}

void PartStep::abort(absl::Status why) {
  stop_.request_stop();
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    if (aborted_.ok()) aborted_ = why;
    // If a thread runs it, that thread notices the request to stop and ends it.
    if (started_ && !awaited_ && !ran_) return;
    awaited_.reset();
    if (!started_) {
      ended_ = true;
      return;
    }
  }
  finish(std::move(why));
}

void PartStep::advance() {
  const Time begin = Clock::real().now();
  while (true) {
    const size_t first = run_->next_node();
    absl::StatusOr<PartRun::State> state = run_->advance();
    gauges_.operators.add(run_->next_node() - first);
    if (!state.ok()) {
      absl::Status error = std::move(state).status();
      {
        MutexLock lock(mutex_);
        if (!aborted_.ok()) error = aborted_;
      }
      return finish(std::move(error));
    }
    if (*state == PartRun::State::kDone) break;
    MutexLock lock(mutex_);
    // Checked before the run is parked: an abort() that came meanwhile relies on this thread to end
    // the step, and a value that arrived meanwhile has not resumed the run.
    if (!aborted_.ok()) continue;
    if (arrived_.contains(wanted_)) continue;
    awaited_ = wanted_;  // from here on deliver() or abort() owns the run
    busy_ += Clock::real().now() - begin;
    return;
  }
  busy_ += Clock::real().now() - begin;
  part_->usual_time.note(busy_);
  auto outputs = try_call([&] { return run_->outputs(); });
  if (!outputs.ok()) return finish(outputs.status());
  result_.outputs = *std::move(outputs);
  {
    MutexLock lock(mutex_);
    ran_ = true;
  }
  finish_if_over();
}

std::optional<Pieces> PartStep::take(uint32_t receive) {
  const uint32_t edge = plan_->graph->def.receives(static_cast<int>(receive)).edge();
  MutexLock lock(mutex_);
  const auto found = arrived_.find(edge);
  if (found == arrived_.end()) {
    wanted_ = edge;
    return std::nullopt;
  }
  Pieces pieces = std::move(found->second);
  arrived_.erase(found);
  gauges_.values.add(-1);
  return pieces;
}

void PartStep::send(uint32_t send, Pieces pieces) {
  const uint32_t edge = plan_->graph->def.sends(static_cast<int>(send)).edge();
  const RegisteredPart::Destination& destination = part_->destinations.at(edge);
  if (destination.channel == nullptr) {
    result_.crossings.push_back({edge, std::move(pieces)});
    return;
  }
  if (bytes_of(pieces) >= kSmallValue) {
    std::vector<CrossingValue> alone;
    alone.push_back({edge, std::move(pieces)});
    return deliver_to(destination, std::move(alone));
  }
  auto& waiting = outbox_[{destination.channel.get(), destination.incarnation}];
  waiting.first = destination;
  waiting.second.push_back({edge, std::move(pieces)});
}

void PartStep::flush() {
  for (auto& [key, waiting] : std::exchange(outbox_, {})) {
    deliver_to(waiting.first, std::move(waiting.second));
  }
}

void PartStep::deliver_to(const RegisteredPart::Destination& destination,
                          std::vector<CrossingValue> values) {
  DeliverRequest request;
  request.mutable_id()->set_registration(part_->registration);
  request.mutable_id()->set_number(number_);
  request.set_timeout_ms(milliseconds_until(deadline_));
  std::vector<at::Tensor> tensors;
  append_crossings(std::move(values), *request.mutable_crossings(), tensors);
  {
    MutexLock lock(mutex_);
    ++delivering_;
  }
  destination.channel->call(kDeliver, make_message(request, std::move(tensors)),
                            {.deadline = deadline_,
                             .incarnation = destination.incarnation,
                             .stop = stop_.get_token(),
                             .retry = step_retry()},
                            [self = shared_from_this()](const Response& response) {
                              self->on_delivered(response.status());
                            });
}

void PartStep::on_delivered(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    --delivering_;
  }
  if (!status.ok()) abort(status);
  finish_if_over();
}

void PartStep::finish_if_over() {
  {
    MutexLock lock(mutex_);
    if (!ran_ || delivering_ > 0) return;
  }
  finish(absl::OkStatus());
}

void PartStep::finish(absl::Status status) {
  OnPartResult done;
  std::map<uint32_t, Pieces> unused;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    done = std::move(done_);
    unused.swap(arrived_);
    gauges_.values.add(-static_cast<int64_t>(unused.size()));
    gauges_.steps.add(-1);
  }
  if (!done) return;
  if (status.ok()) return done(std::move(result_));
  done(with_origin(std::move(status), {part_->task, ""}));
}

}  // namespace trireme::internal
