#include "trireme/coordinator/closure_run.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/user_code.h"
#include "trireme/ps/push_id.h"

namespace trireme::internal {

ClosureRun::ClosureRun(std::shared_ptr<ClosureBatch> batch, size_t index,
                       std::vector<HostedFunctionPtr> functions, ReceivedClosure call,
                       ElementSources sources)
    : batch_(std::move(batch)),
      index_(index),
      functions_(std::move(functions)),
      function_(functions_[0].get()),
      call_(std::move(call)),
      sources_(std::move(sources)) {
  if (function_->draws.empty()) return;
  if (auto kept = environment().kept.take(call_.sequence)) {
    repetition_ = kept->repetition;
    draws_.emplace(std::move(kept->draws));
  }
}

void ClosureRun::start(std::shared_ptr<ClosureRun> run) {
  if (run->takes_turns() &&
      !run->environment().turns.enter([run] { run->continue_with([run] { run->begin(); }); })) {
    return;
  }
  run->begin();
}

void ClosureRun::begin() {
  if (batch_->stopped()) return end(cancelled());
  const Time began = Clock::real().now();
  if (!turn_began_) turn_began_ = began;
  // LibTorch throws, as for memory that is not there; nothing may escape into the executor.
  const auto fits = try_call([&] { return draw(); });
  if (!fits.ok()) return end(fits.status());
  if (!*fits) return keep_drawn();
  drawing_ = Clock::real().now() - began;
  if (function_->native != nullptr) return call_native();
  auto pulls = try_call([&] {
    steps_.emplace(function_->steps, function_->variables, own_variables(), inputs(), seed(),
                   call_.step);
    return value_or_throw(steps_->pulls());
  });
  if (!pulls.ok()) return end(pulls.status());
  if (pulls->empty()) return compute({});
  environment().servers->pull(
      *std::move(pulls),
      [self = shared_from_this()](absl::StatusOr<std::vector<at::Tensor>> pulled) {
        if (!pulled.ok()) return self->end(pulled.status());
        self->continue_with(
            [self, pulled = *std::move(pulled)]() mutable { self->compute(std::move(pulled)); });
      });
}

bool ClosureRun::draw() {
  if (function_->draws.empty()) return true;
  if (draws_ && draws_->sources() != sources_) draws_.reset();
  if (!draws_) draws_.emplace(sources_);
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

void ClosureRun::keep_drawn() {
  RunResult answer{.result = std::vector<at::Tensor>(), .drawn = draws_->elements()};
  environment().kept.keep(call_.sequence, {*std::move(draws_), repetition_});
  end(std::move(answer));
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
      // A graph is captured for the usual strides.
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
  if (batch_->stopped()) return end(cancelled());
  if (draws_) draws_->keep();
  draws_.reset();
  const Time began = Clock::real().now();
  const auto ran = try_call(
      [&] { throw_if_error(steps_->run(std::move(pulled), {.stop = batch_->stop_token()})); });
  if (!ran.ok()) return end(of_user(ran));
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
  if (!results.ok()) return end(of_user(results.status()));
  end_repetition(*std::move(results));
}

void ClosureRun::push(size_t round) {
  if (round == steps_->rounds()) return end_repetition(steps_->results());
  if (batch_->stopped()) return end(cancelled());
  const PushId id{environment().coordinator, call_.sequence + repetition_,
                  static_cast<uint32_t>(round)};
  const auto sent = try_call([&] {
    environment().servers->push(
        steps_->pushes(round),
        {.id = id, .watermark = batch_->watermark(), .lr = steps_->lr(round)},
        [self = shared_from_this(), round](const absl::Status& status) {
          if (!status.ok()) return self->end(status);
          if (round + 1 == self->steps_->rounds()) return self->push(round + 1);
          self->continue_with([self, round] { self->push(round + 1); });
        });
  });
  if (!sent.ok()) end(sent);
}

void ClosureRun::end_repetition(std::vector<at::Tensor> results) {
  if (++repetition_ >= call_.repeat) return end({.result = std::move(results)});
  continue_with([self = shared_from_this()] { self->begin(); });
}

void ClosureRun::end(const absl::Status& error) {
  end({.result = with_origin(
           error, {environment().task, absl::StrCat("function '", function_->name, "'")})});
}

void ClosureRun::end(RunResult answer) {
  draws_.reset();  // what was drawn and not used goes back
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

// Each repetition has random numbers of its own, the first those of a closure that runs once.
uint64_t ClosureRun::seed() const {
  return call_.seed + repetition_ * 0x9e3779b97f4a7c15;
}

absl::Status ClosureRun::cancelled() const {
  return make_status(ErrorCode::kCancelled, "it was cancelled", {environment().task, ""});
}

// Returns an error of the user's function. The code that replay gives it is the function's;
// CANCELLED is only said by Trireme, of closures that are to run again or not at all.
absl::Status ClosureRun::of_user(const absl::Status& error) const {
  ErrorCode code = error_code(error);
  if (code == ErrorCode::kCancelled && !batch_->stopped()) code = ErrorCode::kAborted;
  return make_status(code, std::string(error.message()));
}

}  // namespace trireme::internal
