#include "trireme/coordinator/closure_host.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/user_code.h"

namespace trireme::internal {
namespace {

constexpr size_t kMostResources = 1024;

}  // namespace

bool EndingExecutor::submit(Work work) {
  MutexLock lock(mutex_);
  if (executor_ == nullptr) return false;
  executor_->submit(std::move(work));
  return true;
}

void EndingExecutor::end() {
  MutexLock lock(mutex_);
  executor_ = nullptr;
}

// Closures that came together and are answered together.
class ClosureHost::Batch {
 public:
  Batch(std::shared_ptr<ClosureHost> host, size_t size, uint64_t watermark, uint64_t last,
        std::stop_source stop, Done done)
      : host(std::move(host)),
        watermark(watermark),
        last_sequence(last),
        stop(std::move(stop)),
        left_(size),
        answers_(size),
        done_(std::move(done)) {
    MutexLock lock(this->host->mutex_);
    this->host->batches_.insert(this);
  }

  ~Batch() {
    MutexLock lock(host->mutex_);
    host->batches_.erase(this);
  }

  void set(size_t index, ClosureAnswer answer) {
    answers_[index] = std::move(answer);  // each has its own place
    if (left_.fetch_sub(1) == 1) done_(std::move(answers_));
  }

  const std::shared_ptr<ClosureHost> host;
  const uint64_t watermark;
  const uint64_t last_sequence;
  std::stop_source stop;

 private:
  std::atomic<size_t> left_;
  std::vector<ClosureAnswer> answers_;
  Done done_;
};

// One closure on its way: begin -> draw -> pull -> compute -> push of each round -> end, or begin
// again if it repeats.
class ClosureHost::Run : public std::enable_shared_from_this<Run> {
 public:
  // `programs`: that of the closure, then its variants.
  Run(std::shared_ptr<Batch> batch, size_t index,
      std::vector<std::shared_ptr<const Program>> programs, ClosureCall call,
      ElementSources sources, std::optional<Kept> kept)
      : batch_(std::move(batch)),
        index_(index),
        programs_(std::move(programs)),
        program_(programs_[0].get()),
        call_(std::move(call)),
        sources_(std::move(sources)),
        repetition_(kept ? kept->repetition : 0) {
    if (kept) draws_.emplace(std::move(kept->draws));
  }

  bool takes_turns() const { return programs_[0]->takes_turns; }

  void begin() {
    if (stopped()) return end(cancelled());
    const Time began = Clock::real().now();
    if (!turn_began_) turn_began_ = began;
    // LibTorch throws, as for memory that is not there; nothing may escape into the executor.
    const auto fits = try_call([&] { return draw(); });
    if (!fits.ok()) return end(fits.status());
    if (!*fits) return keep_drawn();
    drawing_ = Clock::real().now() - began;
    if (program_->native != nullptr) return call_native();
    auto pulls = try_call([&] {
      run_.emplace(program_->steps, program_->variables, own_variables(), inputs(), seed(),
                   call_.step);
      return value_or_throw(run_->pulls());
    });
    if (!pulls.ok()) return end(pulls.status());
    if (pulls->empty()) return compute({});
    host().servers_->pull(*std::move(pulls), [self = shared_from_this()](
                                                 absl::StatusOr<std::vector<at::Tensor>> pulled) {
      if (!pulled.ok()) return self->end(pulled.status());
      self->continue_with(
          [self, pulled = *std::move(pulled)]() mutable { self->compute(std::move(pulled)); });
    });
  }

  // Its host's executor runs it; or it ends.
  void continue_with(Work work) {
    if (!host().executor_->submit(std::move(work))) end(cancelled());
  }

 private:
  ClosureHost& host() const { return *batch_->host; }
  bool stopped() const { return batch_->stop.stop_requested(); }

  absl::Status cancelled() const {
    return make_status(ErrorCode::kCancelled, "it was cancelled", {host().options_.task, ""});
  }

  // An error of the user's function: what replay calls the graph is that, and CANCELLED is said by
  // us alone, of closures that are to run again or not at all.
  absl::Status of_user(const absl::Status& error) const {
    ErrorCode code = error_code(error);
    if (code == ErrorCode::kCancelled && !stopped()) code = ErrorCode::kAborted;
    return make_status(code, std::string(error.message()));
  }

  // Each repetition has random numbers of its own, the first those of a closure that runs once.
  uint64_t seed() const { return call_.seed + repetition_ * 0x9e3779b97f4a7c15; }

  // Whether there is a program for the elements.
  bool draw() {
    if (program_->draws.empty()) return true;
    if (draws_ && draws_->sources() != sources_) draws_.reset();
    if (!draws_) draws_.emplace(sources_);
    std::vector<size_t> counts;
    for (const ClosureDraw& draw : program_->draws) counts.push_back(draw.elements.size());
    draws_->adjust(counts);
    std::vector<std::vector<ElementSpec>> drawn;
    for (const auto& elements : draws_->elements()) {
      std::vector<ElementSpec>& specs = drawn.emplace_back();
      for (const Element& element : elements) specs.push_back(spec_of(element));
    }
    const auto fits = [&](const std::shared_ptr<const Program>& program) {
      return std::ranges::equal(program->draws, drawn, {}, &ClosureDraw::elements);
    };
    const auto found = std::ranges::find_if(programs_, fits);
    if (found == programs_.end()) return false;
    program_ = found->get();
    return true;
  }

  void keep_drawn() {
    ClosureAnswer answer{.outcome = std::vector<at::Tensor>(), .drawn = draws_->elements()};
    {
      MutexLock lock(host().mutex_);
      host().kept_.erase(call_.sequence);
      host().kept_.emplace(call_.sequence, Kept{*std::move(draws_), repetition_});
    }
    end(std::move(answer));
  }

  std::vector<at::Tensor> inputs() const {
    std::vector<at::Tensor> inputs;
    inputs.reserve(program_->inputs);
    auto given = call_.tensors.begin();
    const auto add_until = [&](size_t end) {
      while (inputs.size() < end) inputs.push_back(*given++);
    };
    for (size_t i = 0; i < program_->draws.size(); ++i) {
      add_until(program_->draws[i].first_input);
      for (const Element& element : draws_->elements()[i]) {
        // A graph is captured for the usual strides.
        for (const at::Tensor& tensor : element) inputs.push_back(tensor.contiguous());
      }
    }
    add_until(program_->inputs);
    return inputs;
  }

  std::vector<at::Tensor> own_variables() const {
    std::vector<at::Tensor> own;
    auto next = call_.tensors.end() - static_cast<ptrdiff_t>(program_->own);
    for (const auto& variable : program_->variables) {
      own.push_back(variable.has_value() ? at::Tensor() : *next++);
    }
    return own;
  }

  void compute(std::vector<at::Tensor> pulled) {
    if (stopped()) return end(cancelled());
    if (draws_) draws_->keep();
    draws_.reset();
    const Time began = Clock::real().now();
    const auto ran = try_call(
        [&] { throw_if_error(run_->run(std::move(pulled), {.stop = batch_->stop.get_token()})); });
    if (!ran.ok()) return end(of_user(ran));
    note_time(drawing_ + (Clock::real().now() - began));
    push(0);
  }

  void call_native() {
    const Time began = Clock::real().now();
    auto results = try_call([&] {
      const c10::AutoGradMode no_grad(false);
      return call_user_code([&] { return program_->native->call(call_.tensors); });
    });
    note_time(Clock::real().now() - began);
    if (!results.ok()) return end(of_user(results.status()));
    end_repetition(*std::move(results));
  }

  void note_time(Duration time) {
    program_->usual_time.note(time);
    busy_ += time;
  }

  void push(size_t round) {
    if (round == run_->rounds()) return end_repetition(run_->results());
    if (stopped()) return end(cancelled());
    const PushId id{host().options_.coordinator, call_.sequence + repetition_,
                    static_cast<uint32_t>(round)};
    const auto sent = try_call([&] {
      host().servers_->push(run_->pushes(round),
                            {.id = id, .watermark = batch_->watermark, .lr = run_->lr(round)},
                            [self = shared_from_this(), round](const absl::Status& status) {
                              if (!status.ok()) return self->end(status);
                              if (round + 1 == self->run_->rounds()) return self->push(round + 1);
                              self->continue_with([self, round] { self->push(round + 1); });
                            });
    });
    if (!sent.ok()) end(sent);
  }

  void end_repetition(std::vector<at::Tensor> results) {
    if (++repetition_ >= call_.repeat) return end({.outcome = std::move(results)});
    continue_with([self = shared_from_this()] { self->begin(); });
  }

  void end(const absl::Status& error) {
    end({.outcome = with_origin(
             error, {host().options_.task, absl::StrCat("function '", program_->function, "'")})});
  }

  void end(ClosureAnswer answer) {
    draws_.reset();  // what was drawn and not used goes back
    answer.busy = takes_turns() && turn_began_ ? Clock::real().now() - *turn_began_ : busy_;
    if (takes_turns()) host().leave();
    batch_->set(index_, std::move(answer));
  }

  const std::shared_ptr<Batch> batch_;
  const size_t index_;
  const std::vector<std::shared_ptr<const Program>> programs_;
  const Program* program_;  // the one that it uses now
  const ClosureCall call_;
  const ElementSources sources_;
  uint32_t repetition_;
  std::optional<Draws> draws_;
  std::optional<Time> turn_began_;
  Duration drawing_ = {};
  Duration busy_ = {};
  std::optional<StepProgramRun> run_;
};

ClosureHost::ClosureHost(ClosureHostOptions options, std::unique_ptr<PsClient> servers,
                         std::shared_ptr<EndingExecutor> executor)
    : options_(std::move(options)), servers_(std::move(servers)), executor_(std::move(executor)) {}

absl::Status ClosureHost::add_program(uint32_t id, std::shared_ptr<const GraphData> graph,
                                      std::vector<std::optional<VariableLayout>> layouts,
                                      std::vector<ClosureDraw> draws) {
  {
    MutexLock lock(mutex_);
    if (programs_.contains(id)) return absl::OkStatus();
  }
  TRIREME_ASSIGN_OR_RETURN(const std::shared_ptr<const Plan> plan, compile(std::move(graph)));
  std::vector<bool> on_servers;
  std::vector<VariableLayout> wanted;
  for (const auto& layout : layouts) {
    on_servers.push_back(layout.has_value());
    if (layout.has_value()) wanted.push_back(*layout);
  }
  TRIREME_ASSIGN_OR_RETURN(StepProgram steps, make_step_program(*plan, on_servers));
  TRIREME_ASSIGN_OR_RETURN(const std::vector<PsVariable> opened, servers_->open(wanted));
  auto program = std::make_shared<Program>();
  auto next = opened.begin();
  for (bool there : on_servers) {
    program->variables.push_back(there ? std::optional(*next++) : std::nullopt);
  }
  program->function = plan->graph->def.name();
  program->inputs = plan->graph->def.inputs();
  size_t end = 0;
  for (const ClosureDraw& draw : draws) {
    size_t tensors = 0;
    for (const ElementSpec& element : draw.elements) tensors += element.size();
    if (draw.first_input < end || draw.first_input + tensors > program->inputs) {
      return make_status(ErrorCode::kInvalidArgument, "its draws are not among its inputs");
    }
    end = draw.first_input + tensors;
    program->drawn_inputs += tensors;
  }
  program->draws = std::move(draws);
  program->own = layouts.size() - wanted.size();
  program->takes_turns =
      !steps.rounds.empty() && !(steps.pulled.empty() && steps.row_pulls.empty());
  program->steps = std::make_shared<const StepProgram>(std::move(steps));
  MutexLock lock(mutex_);
  programs_[id] = std::move(program);
  return absl::OkStatus();
}

absl::Status ClosureHost::add_native_program(uint32_t id, const std::string& name) {
  const NativeBody* const native = find_native_function(name);
  if (native == nullptr) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "this worker's binary has no native function of that name; run the worker "
                       "with the program's own binary, which makes the function before it serves",
                       {options_.task, absl::StrCat("function '", name, "'")});
  }
  auto program = std::make_shared<Program>();
  program->function = name;
  program->native = native;
  program->inputs = native->arguments;
  MutexLock lock(mutex_);
  programs_[id] = std::move(program);
  return absl::OkStatus();
}

void ClosureHost::drop_program(uint32_t id) {
  MutexLock lock(mutex_);
  programs_.erase(id);
}

absl::Status ClosureHost::add_resource(uint64_t id, std::shared_ptr<ElementSource> source) {
  MutexLock lock(mutex_);
  if (resources_.size() >= kMostResources && !resources_.contains(id)) {
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat("this worker has ", resources_.size(),
                                    " iterators of the program already; let go of some"),
                       {options_.task, ""});
  }
  resources_.try_emplace(id, std::move(source));
  return absl::OkStatus();
}

void ClosureHost::drop_resource(uint64_t id) {
  std::shared_ptr<ElementSource> dropped;  // after the lock
  MutexLock lock(mutex_);
  const auto found = resources_.find(id);
  if (found == resources_.end()) return;
  dropped = std::move(found->second);
  resources_.erase(found);
}

std::vector<ClosureHost::Kept> ClosureHost::take_kept_below(uint64_t sequence) {
  std::vector<Kept> taken;
  while (!kept_.empty() && kept_.begin()->first < sequence) {
    taken.push_back(std::move(kept_.extract(kept_.begin()).mapped()));
  }
  return taken;
}

absl::StatusOr<ElementSources> ClosureHost::sources_of(const ClosureCall& call) {
  ElementSources sources;
  for (uint64_t id : call.resources) {
    const auto found = resources_.find(id);
    if (found == resources_.end()) {
      return make_status(ErrorCode::kNotFound, "no such iterator was created");
    }
    sources.push_back(found->second);
  }
  return sources;
}

void ClosureHost::run(std::vector<ClosureCall> closures, uint64_t watermark, std::stop_source stop,
                      Done done) {
  struct Found {
    std::vector<std::shared_ptr<const Program>> programs;
    ElementSources sources;
    std::optional<Kept> kept;
  };
  std::vector<Found> found(closures.size());
  uint64_t last = 0;
  absl::Status refused;
  std::vector<Kept> forgotten;  // go back after the lock
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < closures.size() && refused.ok(); ++i) {
      const ClosureCall& call = closures[i];
      last = std::max(last, call.sequence + call.repeat - 1);
      if (call.sequence < cancelled_below_) stop.request_stop();  // the word overtook it
      auto programs = programs_of(call);
      auto sources = sources_of(call);
      refused = programs.ok() ? sources.status() : programs.status();
      if (!refused.ok()) break;
      found[i].programs = *std::move(programs);
      found[i].sources = *std::move(sources);
    }
    forgotten = take_kept_below(watermark);
    for (size_t i = 0; i < closures.size() && refused.ok(); ++i) {
      if (auto kept = kept_.extract(closures[i].sequence)) {
        found[i].kept.emplace(std::move(kept.mapped()));
      }
    }
  }
  forgotten.clear();
  if (!refused.ok()) return done(refused);
  if (closures.empty()) return done(std::vector<ClosureAnswer>());
  auto batch = std::make_shared<Batch>(shared_from_this(), closures.size(), watermark, last,
                                       std::move(stop), std::move(done));
  std::vector<std::shared_ptr<Run>> runs;
  for (size_t i = 0; i < closures.size(); ++i) {
    runs.push_back(std::make_shared<Run>(batch, i, std::move(found[i].programs),
                                         std::move(closures[i]), std::move(found[i].sources),
                                         std::move(found[i].kept)));
  }
  for (auto& run : runs) {
    run->takes_turns() ? enter(std::move(run)) : run->begin();
  }
}

absl::StatusOr<std::vector<std::shared_ptr<const ClosureHost::Program>>> ClosureHost::programs_of(
    const ClosureCall& call) {
  std::vector<std::shared_ptr<const Program>> programs;
  const auto found = programs_.find(call.program);
  if (found == programs_.end()) {
    return make_status(ErrorCode::kNotFound, "no such program was registered");
  }
  TRIREME_RETURN_IF_ERROR(check(*found->second, call));
  programs.push_back(found->second);
  for (uint32_t id : call.variants) {
    const auto variant = programs_.find(id);
    if (variant == programs_.end() || !check(*variant->second, call).ok()) continue;
    // One that takes turns otherwise would come or leave without one.
    if (variant->second->takes_turns != programs[0]->takes_turns) continue;
    programs.push_back(variant->second);
  }
  return programs;
}

absl::Status ClosureHost::check(const Program& program, const ClosureCall& call) {
  const size_t tensors = program.inputs - program.drawn_inputs + program.own;
  if (call.tensors.size() != tensors) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("function '", program.function, "' takes ", tensors,
                                    " tensors, and ", call.tensors.size(), " came"));
  }
  if (call.resources.size() != program.draws.size()) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("function '", program.function, "' draws from ", program.draws.size(),
                     " iterators, and ", call.resources.size(), " are named"));
  }
  return absl::OkStatus();
}

bool ClosureHost::is_quick(const std::vector<ClosureCall>& closures) {
  constexpr Duration kQuick = std::chrono::microseconds(50);
  Duration sum{};
  MutexLock lock(mutex_);
  for (const ClosureCall& closure : closures) {
    const auto found = programs_.find(closure.program);
    if (found != programs_.end()) sum += found->second->usual_time.get() * closure.repeat;
  }
  return sum <= kQuick;
}

void ClosureHost::enter(std::shared_ptr<Run> run) {
  {
    MutexLock lock(mutex_);
    if (turns_ == options_.updates_at_once) {
      queue_.push_back(std::move(run));
      return;
    }
    ++turns_;
  }
  run->begin();
}

void ClosureHost::leave() {
  std::shared_ptr<Run> next;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) {
      --turns_;
      return;
    }
    next = std::move(queue_.front());
    queue_.pop_front();
  }
  next->continue_with([next] { next->begin(); });
}

void ClosureHost::cancel_below(uint64_t sequence) {
  std::vector<std::stop_source> stopped;
  std::vector<Kept> forgotten;
  {
    MutexLock lock(mutex_);
    forgotten = take_kept_below(sequence);
    cancelled_below_ = std::max(cancelled_below_, sequence);
    for (Batch* batch : batches_) {
      if (batch->last_sequence < sequence) stopped.push_back(batch->stop);
    }
  }
  for (std::stop_source& stop : stopped) stop.request_stop();
}

}  // namespace trireme::internal
