#include "trireme/ps/parameter_server_backend.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/exec/operator_trace.h"
#include "trireme/function/device_plan.h"
#include "trireme/function/function.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/ps_step_device.h"
#include "trireme/ps/ps_step_run.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/timer.h"

// A step runs in the program itself: the backend pulls the variables that the step reads, replays
// the operators on this machine, and pushes the updates, one round after the other. The derivation
// of what to pull and push (make_ps_step) is cached per plan.
//
// Every push carries (writer, sequence, round), by which servers recognise a repetition. The writer
// is this backend, registered for its lifetime; a step or a push of gradients is one sequence. A
// sequence is in flight from its first push until the last was answered or the step failed. The
// watermark that each push carries is the smallest sequence in flight, so servers can forget the
// records of all earlier ones. A push that failed here but is still on its way is rejected by the
// servers once a later push has raised the watermark above it.
//
// A program that was stopped or cut off for longer than its lease finds its pushes rejected until
// it has renewed the lease. Some servers may have applied their part of such a push, so the user
// could not repeat it without applying that part twice. The backend therefore renews the lease and
// repeats the push under the same identity, before the sequence ends. Changes outside of functions
// are pushes for the same reason.
//
// Variables made by the program are only noted (adopt) and are created on the servers when one of
// them is used. creation_mutex_ is held during that call: threads that need variables wait until
// all of them exist. The two mutexes are never held together.
//
// The names of live variables are unique in a program. So a variable whose name was created before
// is a new one, made after the first was gone, and must not get the values of the first. The same
// holds for shards that a failed attempt has left on some of the servers: the next attempt deletes
// them first.
namespace trireme {
namespace internal {
namespace {

// Time for which a push is repeated that servers reject, measured from the first rejection, and the
// time between two attempts, in which the renewals of the lease are answered.
constexpr auto kRepeatRejected = std::chrono::seconds(15);
constexpr auto kRenewalTime = std::chrono::milliseconds(100);

// State that a variable's record keeps for this backend.
struct BackendState {
  std::optional<PsVariable> variable;  // nullopt until it was created on the servers
};

// Returns the variable on the servers. Call create_pending_variables() before.
const PsVariable& created_variable(const VariableRecord& variable) {
  return *static_cast<const BackendState*>(variable.backend_state.get())->variable;
}

// Returns the tasks that hold a variable.
std::vector<std::string> tasks_of(const PsVariable& variable) {
  std::set<std::string> tasks;
  for (const VariableLayout::Shard& shard : variable.layout().shards) {
    tasks.insert(TaskId{"ps", shard.server}.to_string());
  }
  return {tasks.begin(), tasks.end()};
}

}  // namespace

ParameterServerBackend::ParameterServerBackend(std::unique_ptr<PsClient> client, ShardPlacer placer,
                                               uint64_t largest_whole_gradient)
    : client_(std::move(client)),
      writer_(new_incarnation()),
      largest_whole_gradient_(largest_whole_gradient),
      placer_(std::move(placer)) {
  check(client_->begin_writer(writer_));
}

ParameterServerBackend::~ParameterServerBackend() {
  const bool unused = [&] {
    MutexLock lock(creation_mutex_);
    return created_.empty();
  }();
  // A program that fails, or that could not continue, does not end its job: the next one resumes.
  if (std::uncaught_exceptions() > 0 || (unused && membership()->resumed())) {
    membership()->keep_variables();
  }
  membership()->leave();  // ends the writer too
}

// Servers accept a new writer only from a program of the current generation.
absl::Status ParameterServerBackend::confirm_membership() {
  const uint64_t writer = new_incarnation();
  const absl::Status status = membership()->begin_writer(writer);
  if (!status.ok()) return membership()->explain(status);
  return membership()->end_writer(writer, std::chrono::seconds(10));
}

void ParameterServerBackend::check_device(const VariableRecord& variable) const {
  const DeviceSpec& device = variable.backend_device;
  if (is_remote(device)) {
    const int servers = client_->servers();
    if (device.job != "ps" || device.task.value_or(0) >= servers) {
      throw not_on_task(
          variable.name, device,
          servers == 1 ? "/job:ps/task:0" : absl::StrCat("/job:ps/task:0 to ", servers - 1));
    }
  }
  if (device.type == DeviceType::kGpu) {
    warn_of_unused_device(device, "the ps tasks, in the memory of the host");
  }
}

void ParameterServerBackend::adopt(const std::shared_ptr<VariableRecord>& variable) {
  variable->backend_state = std::make_shared<BackendState>();
  MutexLock lock(creation_mutex_);
  pending_.push_back(variable);
}

void ParameterServerBackend::create_pending_variables() {
  MutexLock lock(creation_mutex_);
  if (pending_.empty()) return;
  const SuspendDeviceCheck own;
  std::vector<std::shared_ptr<VariableRecord>> records;
  std::vector<VariableSpec> specs;
  for (const auto& weak : pending_) {
    auto record = weak.lock();
    if (record == nullptr) continue;  // the program has dropped it without using it
    specs.push_back({.name = record->name,
                     .sizes = record->tensor.sizes().vec(),
                     .dtype = record->tensor.scalar_type(),
                     .server = record->backend_device.task});
    records.push_back(std::move(record));
  }
  std::vector<PsClient::PlacedVariable> made;
  // A copy: if create() fails, the next attempt must place the variables in the same way.
  ShardPlacer placer = placer_;
  for (VariableLayout& layout : placer.place(specs)) {
    const auto earlier = created_.find(layout.name);
    made.push_back(
        {.layout = std::move(layout),
         .initial = records[made.size()]->tensor.detach(),
         .replaces = earlier == created_.end() ? std::nullopt : std::optional(earlier->second)});
  }
  if (!leftovers_.empty()) check(client_->remove_leftovers(leftovers_));
  for (const auto& variable : made) {
    for (const auto& shard : variable.layout.shards) leftovers_[shard.server].insert(shard.name);
  }
  const auto result = client_->create(made);
  // A program that cannot resume ends, and must not take the variables with it.
  if (!result.ok() && membership()->resumed()) membership()->keep_variables();
  const auto variables = checked(result);
  for (size_t i = 0; i < records.size(); ++i) {
    created_.insert_or_assign(variables[i].name(), variables[i]);
    static_cast<BackendState*>(records[i]->backend_state.get())->variable = variables[i];
    // From now on the program's tensor is stale.
    lock_memory(records[i]->tensor, stale_message(variables[i].name(), tasks_of(variables[i])));
  }
  placer_ = std::move(placer);
  pending_.clear();
  leftovers_.clear();
}

PsVariable ParameterServerBackend::ps_variable(const VariableRecord& variable) {
  create_pending_variables();
  return created_variable(variable);
}

void ParameterServerBackend::check_step(const FunctionStep& step) const {
  std::vector<bool> on_servers;
  for (const auto& variable : step.variables) on_servers.push_back(variable->backend != nullptr);
  throw_if_error(make_ps_step(*step.plan, on_servers, largest_whole_gradient_).status());
}

std::vector<std::string> ParameterServerBackend::devices(const VariableRecord& variable) {
  std::vector<std::string> devices;
  for (const VariableLayout::Shard& shard : ps_variable(variable).layout().shards) {
    devices.push_back(TaskId{"ps", shard.server}.to_string());
  }
  return devices;
}

at::Tensor ParameterServerBackend::read(const VariableRecord& variable) {
  return checked(client_->pull({{ps_variable(variable)}})).front();
}

std::vector<at::Tensor> ParameterServerBackend::read_all(const VariableRecords& variables) {
  std::vector<PsPull> pulls;
  for (const auto& variable : variables) pulls.push_back({ps_variable(*variable)});
  return checked(client_->pull(std::move(pulls)));
}

void ParameterServerBackend::assign_all(const VariableRecords& variables,
                                        const std::vector<at::Tensor>& values) {
  const SuspendDeviceCheck own;
  std::vector<PsPush> writes;
  // A module with tied weights has a variable under two names. The last value counts, as if they
  // were assigned one after the other.
  std::map<const VariableRecord*, size_t> places;
  for (size_t i = 0; i < variables.size(); ++i) {
    PsPush write{ps_variable(*variables[i]), Update::Kind::kAssign, {}, values[i].detach()};
    const auto [place, is_new] = places.try_emplace(variables[i].get(), writes.size());
    if (is_new) {
      writes.push_back(std::move(write));
    } else {
      writes[place->second] = std::move(write);
    }
  }
  check(push_once(writes));
}

void ParameterServerBackend::change(const VariableRecord& variable, Change change,
                                    const at::Tensor& value) {
  const SuspendDeviceCheck own;
  const auto kind = change == Change::kAdd ? Update::Kind::kAdd : Update::Kind::kAssign;
  check(push_once(
      {{ps_variable(variable), kind, {}, value.detach().to(variable.tensor.scalar_type())}}));
}

void ParameterServerBackend::set_optimizer(const VariableRecords& variables,
                                           const std::string& rule,
                                           const std::map<std::string, double>& options) {
  std::vector<PsVariable> there;
  for (const auto& variable : variables) there.push_back(ps_variable(*variable));
  const StepGate::Step step(*gate_);
  check(client_->set_optimizer(there, *make_rule(rule, options)));
}

void ParameterServerBackend::push_gradients(const VariableRecords& variables,
                                            const std::vector<at::Tensor>& gradients, double lr) {
  std::vector<PsPush> pushes;
  for (size_t i = 0; i < variables.size(); ++i) {
    pushes.push_back(
        {ps_variable(*variables[i]), Update::Kind::kGradient, {}, gradients[i].detach()});
  }
  check(push_once(pushes, lr));
}

absl::Status ParameterServerBackend::push(const std::vector<PsPush>& pushes, const PushId& id,
                                          std::optional<double> lr) {
  std::optional<Time> limit;
  for (;;) {
    const absl::Status status =
        client_->push(pushes, {.id = id, .watermark = watermark(), .lr = lr});
    if (error_code(status) != ErrorCode::kAborted || !membership()->status().ok()) return status;
    if (!limit) limit = after(kRepeatRejected);
    if (Clock::real().now() >= *limit) {
      return make_status(
          ErrorCode::kAborted,
          absl::StrCat(std::string(status.message()),
                       ". The program has tried to renew its lease for ",
                       format_duration(kRepeatRejected),
                       ". Other servers may have applied their part of the update; do not repeat "
                       "it, which would apply that part twice, but start the program again"),
          error_origin(status));
    }
    membership()->renew();
    block_until(after(kRenewalTime));
  }
}

absl::Status ParameterServerBackend::push_once(const std::vector<PsPush>& pushes,
                                               std::optional<double> lr) {
  const StepGate::Step step(*gate_);
  const uint64_t sequence = begin_sequence();
  const absl::Status status = push(pushes, {writer_, sequence, 0}, lr);
  end_sequence(sequence);
  return status;
}

void ParameterServerBackend::add_pausable(std::weak_ptr<Pausable> pausable) {
  MutexLock lock(mutex_);
  std::erase_if(pausables_, [](const auto& each) { return each.expired(); });
  pausables_.push_back(std::move(pausable));
}

absl::StatusOr<std::unique_ptr<BackendPause>> ParameterServerBackend::pause(Time drain_until,
                                                                            Time limit) {
  auto pause = std::make_unique<BackendPause>(gate_);
  std::vector<std::weak_ptr<Pausable>> pausables;
  {
    MutexLock lock(mutex_);
    pausables = pausables_;
  }
  for (const auto& weak : pausables) {
    const auto pausable = weak.lock();
    if (pausable == nullptr) continue;
    TRIREME_ASSIGN_OR_RETURN(auto paused, pausable->pause(drain_until, limit));
    pause->add(std::move(paused));
  }
  // After the pausables: the capture of a function that they wait for may set an optimizer.
  if (!pause->close(limit)) {
    return make_status(ErrorCode::kDeadlineExceeded,
                       "the program could not be paused in time: a step of the program itself, or "
                       "another pause, has not ended. It goes on; allow more time");
  }
  // A push of the program that has failed may still be on its way.
  const PausedWriter own{writer_, watermark()};
  TRIREME_RETURN_IF_ERROR(confirm_writer_fence(*membership(), own, limit));
  pause->add(own);
  return pause;
}

uint64_t ParameterServerBackend::begin_sequence() {
  MutexLock lock(mutex_);
  in_flight_.insert(next_sequence_);
  return next_sequence_++;
}

void ParameterServerBackend::end_sequence(uint64_t sequence) {
  MutexLock lock(mutex_);
  in_flight_.erase(sequence);
}

uint64_t ParameterServerBackend::watermark() {
  MutexLock lock(mutex_);
  return in_flight_.empty() ? next_sequence_ : *in_flight_.begin();
}

std::shared_ptr<const PsStep> ParameterServerBackend::program_of(
    const FunctionStep& step, const std::vector<bool>& on_servers) {
  {
    MutexLock lock(mutex_);
    const auto found = programs_.find(step.plan.get());
    // The address alone does not identify a plan: a new one may reuse the address of a deleted one.
    if (found != programs_.end() && found->second.plan.lock() == step.plan) {
      return found->second.program;
    }
  }
  const std::shared_ptr<const GraphData> graph = graph_for_program(*step.plan);
  const auto plan = graph == step.plan->graph ? step.plan : value_or_throw(compile(graph));
  auto derived = value_or_throw(make_ps_step(*plan, on_servers, largest_whole_gradient_));
  throw_if_error(assign_to_program(derived));
  auto program = std::make_shared<const PsStep>(std::move(derived));
  MutexLock lock(mutex_);
  std::erase_if(programs_, [](const auto& cached) { return cached.second.plan.expired(); });
  programs_[step.plan.get()] = {step.plan, program};
  return program;
}

std::vector<at::Tensor> ParameterServerBackend::run(const FunctionStep& step,
                                                    const StepOptions& options) {
  std::vector<bool> on_servers;
  std::vector<std::optional<PsVariable>> variables;
  std::vector<at::Tensor> own;
  create_pending_variables();
  for (const auto& variable : step.variables) {
    on_servers.push_back(variable->backend != nullptr);
    own.push_back(variable->backend == nullptr ? variable->tensor : at::Tensor());
    variables.push_back(variable->backend == nullptr ? std::nullopt
                                                     : std::optional(created_variable(*variable)));
  }
  const auto program = program_of(step, on_servers);
  PsStepRun run(program, std::move(variables), std::move(own), step.inputs, step.seed, step.step);
  OperatorTrace trace;
  ReplayOptions replay;
  replay.stop = options.stop;
  replay.check_numerics = options.check_numerics;
  if (!options.trace_file.empty()) replay.trace = &trace;

  const StepGate::Step passed(*gate_);
  std::vector<PsPull> pulls = value_or_throw(run.pulls());
  std::vector<at::Tensor> pulled;
  if (!pulls.empty()) pulled = checked(client_->pull(std::move(pulls)));
  for (size_t i = 0; i < step.variables.size(); ++i) {
    if (program->plan->variable_written[i]) ++step.variables[i]->replays;
  }
  throw_if_error(run.run(std::move(pulled), replay));
  const uint64_t sequence = begin_sequence();
  absl::Status status;
  for (size_t round = 0; round < run.rounds() && status.ok(); ++round) {
    status =
        push(run.pushes(round), {writer_, sequence, static_cast<uint32_t>(round)}, run.lr(round));
  }
  end_sequence(sequence);
  check(with_origin(status, {"", absl::StrCat("function '", step.function, "'")}));
  if (replay.trace != nullptr) std::ofstream(options.trace_file) << trace.chrome_json();
  return run.results();
}

}  // namespace internal

namespace {

std::shared_ptr<internal::ParameterServerBackend> connect(const ClusterSpec& spec,
                                                          const ParameterServersOptions& options) {
  if (!options.job.empty()) throw_if_error(check_job_id(options.job));
  spec.check_ports();
  const Time deadline = after(options.connect_timeout);
  auto client = value_or_throw(
      PsClient::connect({.spec = spec,
                         .container = options.container,
                         .credentials = value_or_throw(Credentials::of_program(options.certs)),
                         .shared_memory = options.shared_memory},
                        deadline));
  throw_if_error(client->join(
      {.id = options.job, .resume = options.resume, .keep = options.keep, .lease = options.lease},
      deadline));
  const int servers = client->servers();
  auto backend = std::make_unique<internal::ParameterServerBackend>(
      std::move(client), ShardPlacer(servers, options.placement, options.partitioner),
      options.largest_whole_gradient);
  // A callback may hold the last reference.
  return {backend.release(), [](internal::ParameterServerBackend* last) {
            internal::run_blocking([last] { delete last; });
          }};
}

}  // namespace

// Variables keep their backend alive, and the registry keeps the variables of modules until it
// looks for those that are gone (variable_registry.cc).
ParameterServers::ParameterServers(const ClusterSpec& spec, ParameterServersOptions options)
    : last_(nullptr, [](void*) { internal::live_variables(); }), backend_(connect(spec, options)) {}

ParameterServers::Scope::Scope(std::unique_ptr<internal::BackendScope> scope)
    : scope_(std::move(scope)) {}
ParameterServers::Scope::~Scope() = default;
ParameterServers::Scope::Scope(Scope&&) noexcept = default;

ParameterServers::Scope ParameterServers::scope() const {
  return Scope(std::make_unique<internal::BackendScope>(backend_));
}

}  // namespace trireme
