#include "trireme/coordinator/closure_run.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/ps_watch.h"
#include "trireme/coordinator/user_code.h"
#include "trireme/ps/push_id.h"

// A run is a chain of callbacks. No thread waits for a parameter server: pull() and push() return
// at once, and their callbacks continue the run on the executor, because computing on the thread
// that reads from the network would delay other calls. The last push continues in place, as nothing
// is left to compute.
//
// The last push of a repetition also pulls what the next one needs, if that is known and small, so
// that a step of a small model makes one call to each server instead of two.
//
// Pushes are identified by (coordinator, sequence + repetition, round). A closure that runs again,
// here or on another worker, sends pushes with the same identity, and servers apply each once. If a
// run was interrupted after it had pushed some repetitions, the next run thus repeats them without
// effect.
//
// A run draws the elements that the coordinator has allotted to the closure. A run that is
// cancelled before it has pushed has had no effect, and says so in its answer. A run that draws
// shapes that no function takes ends with these shapes as its answer. The coordinator captures the
// function for them and sends the closure again, with the same elements. Repetitions that are done
// do not run again: their number and the sums of their results travel with the answer, and with the
// closure when it is sent again. They would compute other results, since the variables have changed
// meanwhile. The same is done when a range of the data ends.
//
// A closure that both reads and changes variables waits for its turn before it draws, and keeps the
// turn until it ends. Every path therefore leads to end(RunResult), which is called exactly once,
// passes the turn on, and sets the answer in the batch. LibTorch and user code may throw, so they
// are called in try_call().
namespace trireme::internal {

ClosureRun::ClosureRun(std::shared_ptr<ClosureBatch> batch, size_t index,
                       std::vector<HostedFunctionPtr> functions, ReceivedClosure call,
                       AllottedSources sources)
    : batch_(std::move(batch)),
      index_(index),
      functions_(std::move(functions)),
      function_(functions_[0].get()),
      call_(std::move(call)),
      sources_(std::move(sources)),
      repetition_(call_.runs_done),
      sums_(call_.sums, call_.runs_done),
      begun_(call_.may_have_pushed) {}

bool ClosureRun::enter(const std::shared_ptr<ClosureRun>& run) {
  return !run->takes_turns() || run->environment().turns.enter([run] { begin_later(run); });
}

void ClosureRun::begin_later(const std::shared_ptr<ClosureRun>& run) {
  run->continue_with([run] { run->begin(); });
}

void ClosureRun::begin() {
  if (stopped()) return end(cancelled());
  if (const absl::Status failed = batch_->server_failure(); !failed.ok()) return end(failed);
  const Time began = Clock::real().now();
  if (!turn_began_) turn_began_ = began;
  // LibTorch throws, for example when out of memory. No exception may escape into the executor.
  const auto fits = try_call([&] { return draw(); });
  if (!fits.ok()) return end(fits.status());
  if (!*fits) {
    return end(with_progress({.result = std::vector<at::Tensor>(), .drawn = draws_->elements()}));
  }
  drawing_ = Clock::real().now() - began;
  if (function_->native != nullptr) return call_native();
  auto pulls = try_call([&] {
    steps_.emplace(function_->steps, function_->variables, own_variables(), inputs(), seed(),
                   call_.step);
    return value_or_throw(steps_->pulls());
  });
  if (!pulls.ok()) return end(pulls.status());
  auto ahead = std::exchange(pulled_ahead_, {});
  if (pulls->empty()) return compute({});
  if (ahead.function == function_) return compute(std::move(ahead.contents));
  environment().servers->pull(
      *std::move(pulls),
      [self = shared_from_this()](absl::StatusOr<std::vector<at::Tensor>> pulled) {
        if (!pulled.ok()) return self->end_after_call(pulled.status());
        self->continue_with(
            [self, pulled = *std::move(pulled)]() mutable { self->compute(std::move(pulled)); });
      });
}

bool ClosureRun::draw() {
  if (function_->draws.empty()) return true;
  if (!draws_) draws_.emplace(ElementSources(sources_.begin(), sources_.end()));
  std::vector<size_t> counts;
  for (const ClosureDraw& draw : function_->draws) counts.push_back(draw.elements.size());
  draws_->adjust(counts);
  std::vector<std::vector<ElementSpec>> drawn;
  for (const auto& elements : draws_->elements()) {
    std::vector<ElementSpec>& specs = drawn.emplace_back();
    for (const Element& element : elements) specs.push_back(spec_of(element));
  }
  const auto fits = [&](const HostedFunctionPtr& function) {
    return std::ranges::equal(function->draws, drawn, {}, &ClosureDraw::elements);
  };
  const auto found = std::ranges::find_if(functions_, fits);
  if (found == functions_.end()) return false;
  function_ = found->get();
  return true;
}

std::vector<at::Tensor> ClosureRun::inputs() const {
  std::vector<at::Tensor> inputs;
  inputs.reserve(function_->inputs);
  auto given = call_.tensors.begin();
  const auto add_until = [&](size_t end) {
    while (inputs.size() < end) inputs.push_back(*given++);
  };
  for (size_t i = 0; i < function_->draws.size(); ++i) {
    add_until(function_->draws[i].first_input);
    for (const Element& element : draws_->elements()[i]) {
      // Graphs are captured for contiguous inputs.
      for (const at::Tensor& tensor : element) inputs.push_back(tensor.contiguous());
    }
  }
  add_until(function_->inputs);
  return inputs;
}

std::vector<at::Tensor> ClosureRun::own_variables() const {
  std::vector<at::Tensor> own;
  auto next = call_.tensors.end() - static_cast<ptrdiff_t>(function_->own);
  for (const auto& variable : function_->variables) {
    own.push_back(variable.has_value() ? at::Tensor() : *next++);
  }
  return own;
}

void ClosureRun::compute(std::vector<at::Tensor> pulled) {
  if (stopped()) return end(cancelled());
  const Time began = Clock::real().now();
  const auto ran =
      try_call([&] { throw_if_error(steps_->run(std::move(pulled), {.stop = stop_token()})); });
  if (!ran.ok()) {
    const absl::Status error = as_user_error(ran);
    if (error_code(error) != ErrorCode::kCancelled) consume();
    return end(error);
  }
  note_time(drawing_ + (Clock::real().now() - began));
  push(0);
}

void ClosureRun::call_native() {
  const Time began = Clock::real().now();
  auto results = try_call([&] {
    const c10::AutoGradMode no_grad(false);
    return call_user_code([&] { return function_->native->call(call_.tensors); });
  });
  note_time(Clock::real().now() - began);
  if (!results.ok()) return end(as_user_error(results.status()));
  end_repetition(*std::move(results));
}

void ClosureRun::push(size_t round) {
  if (round == steps_->rounds()) return end_repetition(steps_->results());
  if (stopped()) return end(cancelled());
  begun_ = true;
  consume();
  const PushId id{environment().coordinator, call_.sequence + repetition_,
                  static_cast<uint32_t>(round)};
  const bool is_last = round + 1 == steps_->rounds();
  const bool repeats = repetition_ + 1 < call_.repeat;
  const auto sent = try_call([&] {
    environment().servers->push_then_pull(
        steps_->pushes(round),
        {.id = id, .watermark = batch_->watermark(), .lr = steps_->lr(round)},
        is_last && repeats ? steps_->next_pulls() : std::vector<PsPull>(),
        [self = shared_from_this(), round,
         is_last](absl::StatusOr<std::optional<std::vector<at::Tensor>>> pulled) {
          if (!pulled.ok()) return self->end_after_call(pulled.status());
          if (!is_last) return self->continue_with([self, round] { self->push(round + 1); });
          if (*pulled) self->pulled_ahead_ = {self->function_, **std::move(pulled)};
          self->push(round + 1);
        });
  });
  if (!sent.ok()) end(sent);
}

void ClosureRun::consume() {
  if (!draws_) return;
  draws_->keep();
  draws_.reset();
}

void ClosureRun::end_repetition(std::vector<at::Tensor> results) {
  begun_ = begun_ || draws_.has_value();
  consume();
  if (call_.sum_results) {
    const auto added = try_call([&] { throw_if_error(sums_.add(std::move(results))); });
    if (!added.ok()) return end(added);
    results = sums_.get();
  }
  if (++repetition_ >= call_.repeat) {
    return end({.result = std::move(results)});
  }
  continue_with([self = shared_from_this()] { self->begin(); });
}

void ClosureRun::end_after_call(const absl::Status& error) {
  if (indicates_lost_task(error)) batch_->note_server_failure(error);
  end(error);
}

// An error that arose on this worker names the function. If its origin is an object that the
// function uses, such as an iterator or a variable, that becomes part of the text.
void ClosureRun::end(const absl::Status& error) {
  const Origin origin{environment().task, absl::StrCat("function '", function_->name, "'")};
  const bool arose_here = error_origin(error).task.empty();
  RunResult answer{
      .result =
          with_origin(arose_here ? make_status(error_code(error), describe(error)) : error, origin),
      .nothing_pushed = !begun_ && error_code(error) == ErrorCode::kCancelled};
  for (size_t i = 0; error_code(error) == ErrorCode::kEndOfData && i < sources_.size(); ++i) {
    const auto& end = sources_[i]->end();
    if (end) answer.end = DataEnd{i, end->number, end->is_beyond};
  }
  end(answer.end ? with_progress(std::move(answer)) : std::move(answer));
}

RunResult ClosureRun::with_progress(RunResult answer) const {
  answer.runs_done = repetition_;
  if (call_.sum_results) answer.sums = sums_.get();
  return answer;
}

void ClosureRun::end(RunResult answer) {
  draws_.reset();  // Puts back elements that were not consumed.
  answer.busy = takes_turns() && turn_began_ ? Clock::real().now() - *turn_began_ : busy_;
  if (takes_turns()) environment().turns.leave();
  batch_->set(index_, std::move(answer));
}

void ClosureRun::continue_with(Work work) {
  if (!environment().executor->submit(std::move(work))) end(cancelled());
}

void ClosureRun::note_time(Duration time) {
  function_->usual_time.note(time);
  busy_ += time;
}

// Each repetition has its own random numbers. The first has those of a closure that runs once.
uint64_t ClosureRun::seed() const {
  return call_.seed + repetition_ * 0x9e3779b97f4a7c15;
}

absl::Status ClosureRun::cancelled() const {
  return make_status(ErrorCode::kCancelled, "the closure was cancelled", {environment().task, ""});
}

// The coordinator requeues closures that fail with CANCELLED, so a function that itself throws
// CANCELLED would run for ever. Its error is returned as ABORTED, without the origin that the
// function may have given it, so that it cannot be mistaken for a failure of a parameter server.
absl::Status ClosureRun::as_user_error(const absl::Status& error) const {
  ErrorCode code = error_code(error);
  if (code == ErrorCode::kCancelled && !stopped()) code = ErrorCode::kAborted;
  return make_status(code, std::string(error.message()));
}

}  // namespace trireme::internal
