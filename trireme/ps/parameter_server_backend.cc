#include "trireme/ps/parameter_server_backend.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/memory_lock.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/function.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/ps_step_run.h"

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
// Variables made by the program are only noted (adopt) and are created on the servers when one of
// them is used. creation_mutex_ is held during that call: threads that need variables wait until
// all of them exist. The two mutexes are never held together.
namespace trireme {
namespace internal {
namespace {

// State that a variable's record keeps for this backend.
struct BackendState {
  std::optional<PsVariable> variable;  // nullopt until it was created on the servers
};

// Returns the variable on the servers. Call create_pending_variables() before.
const PsVariable& created_variable(const VariableRecord& variable) {
  return *static_cast<const BackendState*>(variable.backend_state.get())->variable;
}

// Returns the error for code that uses the program's tensor of a variable on the servers.
std::string stale_message(const PsVariable& variable) {
  std::set<std::string> tasks;
  for (const VariableLayout::Shard& shard : variable.layout().shards) {
    tasks.insert(TaskId{"ps", shard.server}.to_string());
  }
  return absl::StrCat(
      "variable '", variable.name(), "' lives on ", absl::StrJoin(tasks, ", "),
      "; the program has only its initial values. Use it in a captured function, or copy the "
      "current values into an ordinary module with strategy.pull(module, local), and back with "
      "strategy.push(module, local)");
}

}  // namespace

ParameterServerBackend::ParameterServerBackend(std::unique_ptr<PsClient> client, ShardPlacer placer)
    : client_(std::move(client)), writer_(new_incarnation()), placer_(std::move(placer)) {
  throw_if_error(client_->begin_writer(writer_));
}

ParameterServerBackend::~ParameterServerBackend() {
  // Errors do not matter: a server that cannot be reached is lost together with its records.
  client_->end_writer(writer_, std::chrono::seconds(2)).IgnoreError();
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
    specs.push_back({record->name, record->tensor.sizes().vec(), record->tensor.scalar_type()});
    records.push_back(std::move(record));
  }
  std::vector<PsClient::PlacedVariable> made;
  // A copy: if create() fails, the next attempt must place the variables in the same way.
  ShardPlacer placer = placer_;
  for (VariableLayout& layout : placer.place(specs)) {
    made.push_back({std::move(layout), records[made.size()]->tensor.detach()});
  }
  const auto variables = value_or_throw(client_->create(made));
  for (size_t i = 0; i < records.size(); ++i) {
    static_cast<BackendState*>(records[i]->backend_state.get())->variable = variables[i];
    // From now on the program's tensor is stale.
    lock_memory(records[i]->tensor, stale_message(variables[i]));
  }
  placer_ = std::move(placer);
  pending_.clear();
}

PsVariable ParameterServerBackend::ps_variable(const VariableRecord& variable) {
  create_pending_variables();
  return created_variable(variable);
}

std::vector<std::string> ParameterServerBackend::devices(const VariableRecord& variable) {
  std::vector<std::string> devices;
  for (const VariableLayout::Shard& shard : ps_variable(variable).layout().shards) {
    devices.push_back(TaskId{"ps", shard.server}.to_string());
  }
  return devices;
}

at::Tensor ParameterServerBackend::read(const VariableRecord& variable) {
  return value_or_throw(client_->pull({{ps_variable(variable)}})).front();
}

std::vector<at::Tensor> ParameterServerBackend::read_all(const VariableRecords& variables) {
  std::vector<PsPull> pulls;
  for (const auto& variable : variables) pulls.push_back({ps_variable(*variable)});
  return value_or_throw(client_->pull(std::move(pulls)));
}

void ParameterServerBackend::assign_all(const VariableRecords& variables,
                                        const std::vector<at::Tensor>& values) {
  const SuspendDeviceCheck own;
  std::vector<PsPush> writes;
  for (size_t i = 0; i < variables.size(); ++i) {
    writes.push_back({ps_variable(*variables[i]), Update::Kind::kAssign, {}, values[i].detach()});
  }
  throw_if_error(client_->write(std::move(writes)));
}

void ParameterServerBackend::change(const VariableRecord& variable, Change change,
                                    const at::Tensor& value) {
  const SuspendDeviceCheck own;
  const auto kind = change == Change::kAdd ? Update::Kind::kAdd : Update::Kind::kAssign;
  throw_if_error(client_->write(
      {{ps_variable(variable), kind, {}, value.detach().to(variable.tensor.scalar_type())}}));
}

void ParameterServerBackend::set_optimizer(const VariableRecords& variables,
                                           const std::string& rule,
                                           const std::map<std::string, double>& options) {
  std::vector<PsVariable> there;
  for (const auto& variable : variables) there.push_back(ps_variable(*variable));
  throw_if_error(client_->set_optimizer(there, *make_rule(rule, options)));
}

void ParameterServerBackend::push_gradients(const VariableRecords& variables,
                                            const std::vector<at::Tensor>& gradients, double lr) {
  std::vector<PsPush> pushes;
  for (size_t i = 0; i < variables.size(); ++i) {
    pushes.push_back(
        {ps_variable(*variables[i]), Update::Kind::kGradient, {}, gradients[i].detach()});
  }
  const uint64_t sequence = begin_sequence();
  const absl::Status status =
      client_->push(pushes, {.id = {writer_, sequence, 0}, .watermark = watermark(), .lr = lr});
  end_sequence(sequence);
  throw_if_error(status);
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
  auto program =
      std::make_shared<const PsStep>(value_or_throw(make_ps_step(*step.plan, on_servers)));
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

  std::vector<PsPull> pulls = value_or_throw(run.pulls());
  std::vector<at::Tensor> pulled;
  if (!pulls.empty()) pulled = value_or_throw(client_->pull(std::move(pulls)));
  for (size_t i = 0; i < step.variables.size(); ++i) {
    if (program->plan->variable_written[i]) ++step.variables[i]->replays;
  }
  throw_if_error(run.run(std::move(pulled), replay));
  const uint64_t sequence = begin_sequence();
  absl::Status status;
  for (size_t round = 0; round < run.rounds() && status.ok(); ++round) {
    status =
        client_->push(run.pushes(round), {.id = {writer_, sequence, static_cast<uint32_t>(round)},
                                          .watermark = watermark(),
                                          .lr = run.lr(round)});
  }
  end_sequence(sequence);
  throw_if_error(with_origin(status, {"", absl::StrCat("function '", step.function, "'")}));
  if (replay.trace != nullptr) std::ofstream(options.trace_file) << trace.chrome_json();
  return run.results();
}

}  // namespace internal

namespace {

std::shared_ptr<internal::ParameterServerBackend> connect(const ClusterSpec& spec,
                                                          const ParameterServersOptions& options) {
  auto client = value_or_throw(
      PsClient::connect({.spec = spec,
                         .container = options.container,
                         .credentials = value_or_throw(Credentials::of_program(options.certs))},
                        after(options.connect_timeout)));
  const int servers = client->servers();
  return std::make_shared<internal::ParameterServerBackend>(
      std::move(client), ShardPlacer(servers, options.placement, options.partitioner));
}

}  // namespace

ParameterServers::ParameterServers(const ClusterSpec& spec, ParameterServersOptions options)
    : backend_(connect(spec, options)) {}

ParameterServers::Scope::Scope(std::unique_ptr<internal::BackendScope> scope)
    : scope_(std::move(scope)) {}
ParameterServers::Scope::~Scope() = default;
ParameterServers::Scope::Scope(Scope&&) noexcept = default;

ParameterServers::Scope ParameterServers::scope() const {
  return Scope(std::make_unique<internal::BackendScope>(backend_));
}

}  // namespace trireme
