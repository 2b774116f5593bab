#include "trireme/coordinator/closure_host.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

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
        outcomes_(size, make_status(ErrorCode::kInternal, "it has not run")),
        done_(std::move(done)) {
    MutexLock lock(this->host->mutex_);
    this->host->batches_.insert(this);
  }

  ~Batch() {
    MutexLock lock(host->mutex_);
    host->batches_.erase(this);
  }

  void set(size_t index, ClosureOutcome outcome) {
    outcomes_[index] = std::move(outcome);  // each has its own place
    if (left_.fetch_sub(1) == 1) done_(std::move(outcomes_));
  }

  const std::shared_ptr<ClosureHost> host;
  const uint64_t watermark;
  const uint64_t last_sequence;
  std::stop_source stop;

 private:
  std::atomic<size_t> left_;
  std::vector<ClosureOutcome> outcomes_;
  Done done_;
};

// One closure on its way: begin -> pull -> compute -> push of each round -> end.
class ClosureHost::Run : public std::enable_shared_from_this<Run> {
 public:
  Run(std::shared_ptr<Batch> batch, size_t index, std::shared_ptr<const Program> program,
      const ClosureCall& call)
      : batch_(std::move(batch)),
        index_(index),
        program_(std::move(program)),
        sequence_(call.sequence),
        run_(program_->steps, program_->variables, own_variables(call), inputs(call), call.seed,
             call.step) {}

  const Program& program() const { return *program_; }

  void begin() {
    if (stopped()) return end(cancelled());
    // LibTorch throws, as for memory that is not there; nothing may escape into the executor.
    auto pulls = try_call([&] { return value_or_throw(run_.pulls()); });
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

  std::vector<at::Tensor> inputs(const ClosureCall& call) const {
    return {call.tensors.begin(), call.tensors.begin() + static_cast<ptrdiff_t>(program_->inputs)};
  }

  std::vector<at::Tensor> own_variables(const ClosureCall& call) const {
    std::vector<at::Tensor> own;
    auto next = call.tensors.begin() + static_cast<ptrdiff_t>(program_->inputs);
    for (const auto& variable : program_->variables) {
      own.push_back(variable.has_value() ? at::Tensor() : *next++);
    }
    return own;
  }

  void compute(std::vector<at::Tensor> pulled) {
    if (stopped()) return end(cancelled());
    const Time begin = Clock::real().now();
    const auto ran = try_call(
        [&] { throw_if_error(run_.run(std::move(pulled), {.stop = batch_->stop.get_token()})); });
    if (!ran.ok()) return end(ran);
    program_->usual_time.note(Clock::real().now() - begin);
    push(0);
  }

  void push(size_t round) {
    if (round == run_.rounds()) return end(run_.results());
    if (stopped()) return end(cancelled());
    const PushId id{host().options_.coordinator, sequence_, static_cast<uint32_t>(round)};
    const auto sent = try_call([&] {
      host().servers_->push(run_.pushes(round),
                            {.id = id, .watermark = batch_->watermark, .lr = run_.lr(round)},
                            [self = shared_from_this(), round](const absl::Status& status) {
                              if (!status.ok()) return self->end(status);
                              if (round + 1 == self->run_.rounds()) return self->push(round + 1);
                              self->continue_with([self, round] { self->push(round + 1); });
                            });
    });
    if (!sent.ok()) end(sent);
  }

  void end(ClosureOutcome outcome) {
    if (!outcome.ok()) {
      outcome =
          with_origin(outcome.status(),
                      {host().options_.task,
                       absl::StrCat("graph '", program_->steps->plan->graph->def.name(), "'")});
    }
    if (program_->takes_turns) host().leave();
    batch_->set(index_, std::move(outcome));
  }

  const std::shared_ptr<Batch> batch_;
  const size_t index_;
  const std::shared_ptr<const Program> program_;
  const uint64_t sequence_;
  StepProgramRun run_;
};

ClosureHost::ClosureHost(ClosureHostOptions options, std::unique_ptr<PsClient> servers,
                         std::shared_ptr<EndingExecutor> executor)
    : options_(std::move(options)), servers_(std::move(servers)), executor_(std::move(executor)) {}

absl::Status ClosureHost::add_program(uint32_t id, std::shared_ptr<const GraphData> graph,
                                      std::vector<std::optional<VariableLayout>> layouts) {
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
  program->inputs = plan->graph->def.inputs();
  program->own = layouts.size() - wanted.size();
  program->takes_turns =
      !steps.rounds.empty() && !(steps.pulled.empty() && steps.row_pulls.empty());
  program->steps = std::make_shared<const StepProgram>(std::move(steps));
  MutexLock lock(mutex_);
  programs_[id] = std::move(program);
  return absl::OkStatus();
}

void ClosureHost::run(std::vector<ClosureCall> closures, uint64_t watermark, std::stop_source stop,
                      Done done) {
  std::vector<std::shared_ptr<const Program>> programs;
  uint64_t last = 0;
  {
    MutexLock lock(mutex_);
    for (const ClosureCall& closure : closures) {
      last = std::max(last, closure.sequence);
      const auto found = programs_.find(closure.program);
      programs.push_back(found == programs_.end() ? nullptr : found->second);
    }
  }
  for (size_t i = 0; i < closures.size(); ++i) {
    if (programs[i] == nullptr) {
      return done(make_status(ErrorCode::kNotFound, "no such program was registered"));
    }
    if (closures[i].tensors.size() != programs[i]->inputs + programs[i]->own) {
      return done(make_status(
          ErrorCode::kInvalidArgument,
          absl::StrCat("the program takes ", programs[i]->inputs, " inputs and ", programs[i]->own,
                       " variables, and ", closures[i].tensors.size(), " tensors came")));
    }
  }
  if (closures.empty()) return done(std::vector<ClosureOutcome>());
  auto batch = std::make_shared<Batch>(shared_from_this(), closures.size(), watermark, last,
                                       std::move(stop), std::move(done));
  std::vector<std::shared_ptr<Run>> runs;
  for (size_t i = 0; i < closures.size(); ++i) {
    runs.push_back(std::make_shared<Run>(batch, i, programs[i], closures[i]));
  }
  for (auto& run : runs) {
    run->program().takes_turns ? enter(std::move(run)) : run->begin();
  }
}

bool ClosureHost::is_quick(const std::vector<ClosureCall>& closures) {
  constexpr Duration kQuick = std::chrono::microseconds(50);
  Duration sum{};
  MutexLock lock(mutex_);
  for (const ClosureCall& closure : closures) {
    const auto found = programs_.find(closure.program);
    if (found != programs_.end()) sum += found->second->usual_time.get();
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
  {
    MutexLock lock(mutex_);
    for (Batch* batch : batches_) {
      if (batch->last_sequence < sequence) stopped.push_back(batch->stop);
    }
  }
  for (std::stop_source& stop : stopped) stop.request_stop();
}

}  // namespace trireme::internal
