#include "trireme/ps/parameter_server_backend.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_scope.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/function/function.h"
#include "trireme/optim/update_rule.h"
#include "trireme/ps/parameter_servers.h"
#include "trireme/ps/ps_step_run.h"

namespace trireme {
namespace internal {
namespace {

// What a variable's record keeps for its backend.
struct BackendState {
  std::optional<PsVariable> variable;
};

// After make_new_ones().
const PsVariable& made(const VariableRecord& variable) {
  return *static_cast<const BackendState*>(variable.backend_state.get())->variable;
}

}  // namespace

ParameterServerBackend::ParameterServerBackend(std::unique_ptr<PsClient> client, ShardPlacer placer)
    : client_(std::move(client)), writer_(new_incarnation()), placer_(std::move(placer)) {
  throw_if_error(client_->begin_writer(writer_));
}

ParameterServerBackend::~ParameterServerBackend() {
  // Whoever cannot be told has lost its variables, and forgets the writer with them.
  client_->end_writer(writer_, std::chrono::seconds(2)).IgnoreError();
}

void ParameterServerBackend::adopt(const std::shared_ptr<VariableRecord>& variable) {
  variable->backend_state = std::make_shared<BackendState>();
  MutexLock lock(making_);
  new_.push_back(variable);
}

void ParameterServerBackend::make_new_ones() {
  MutexLock lock(making_);
  if (new_.empty()) return;
  const OwnWork own;
  std::vector<std::shared_ptr<VariableRecord>> records;
  std::vector<VariableSpec> specs;
  for (const auto& weak : new_) {
    auto record = weak.lock();
    if (record == nullptr) continue;
    specs.push_back({record->name, record->tensor.sizes().vec(), record->tensor.scalar_type()});
    records.push_back(std::move(record));
  }
  std::vector<PsClient::PlacedVariable> made;
  ShardPlacer placer = placer_;  // if it fails, the next attempt places them as this one does
  for (VariableLayout& layout : placer.place(specs)) {
    made.push_back({std::move(layout), records[made.size()]->tensor.detach()});
  }
  const auto variables = value_or_throw(client_->create(made));
  for (size_t i = 0; i < records.size(); ++i) {
    static_cast<BackendState*>(records[i]->backend_state.get())->variable = variables[i];
  }
  placer_ = std::move(placer);
  new_.clear();
}

PsVariable ParameterServerBackend::ps_variable(const VariableRecord& variable) {
  make_new_ones();
  return made(variable);
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

void ParameterServerBackend::change(const VariableRecord& variable, Change change,
                                    const at::Tensor& value) {
  const OwnWork own;
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
  under_way_.insert(next_sequence_);
  return next_sequence_++;
}

void ParameterServerBackend::end_sequence(uint64_t sequence) {
  MutexLock lock(mutex_);
  under_way_.erase(sequence);
}

uint64_t ParameterServerBackend::watermark() {
  MutexLock lock(mutex_);
  return under_way_.empty() ? next_sequence_ : *under_way_.begin();
}

std::shared_ptr<const PsStep> ParameterServerBackend::program_of(
    const FunctionStep& step, const std::vector<bool>& on_servers) {
  {
    MutexLock lock(mutex_);
    const auto found = programs_.find(step.plan.get());
    // Another plan may have come to lie where one that is gone was.
    if (found != programs_.end() && found->second.plan.lock() == step.plan) {
      return found->second.program;
    }
  }
  auto program =
      std::make_shared<const PsStep>(value_or_throw(make_ps_step(*step.plan, on_servers)));
  MutexLock lock(mutex_);
  std::erase_if(programs_, [](const auto& known) { return known.second.plan.expired(); });
  programs_[step.plan.get()] = {step.plan, program};
  return program;
}

std::vector<at::Tensor> ParameterServerBackend::run(const FunctionStep& step,
                                                    const StepOptions& options) {
  std::vector<bool> on_servers;
  std::vector<std::optional<PsVariable>> variables;
  std::vector<at::Tensor> own;
  make_new_ones();
  for (const auto& variable : step.variables) {
    on_servers.push_back(variable->backend != nullptr);
    own.push_back(variable->backend == nullptr ? variable->tensor : at::Tensor());
    variables.push_back(variable->backend == nullptr ? std::nullopt
                                                     : std::optional(made(*variable)));
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
