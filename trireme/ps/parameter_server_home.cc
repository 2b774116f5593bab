#include "trireme/ps/parameter_server_home.h"

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
#include "trireme/ps/step_program_run.h"

namespace trireme {
namespace internal {
namespace {

// What a variable's record keeps for its home.
struct AtHome {
  std::optional<PsVariable> variable;
};

// After make_new_ones().
const PsVariable& made(const VariableRecord& variable) {
  return *static_cast<const AtHome*>(variable.at_home.get())->variable;
}

}  // namespace

ParameterServerHome::ParameterServerHome(std::unique_ptr<PsClient> client, Placer placer)
    : client_(std::move(client)), origin_(new_incarnation()), placer_(std::move(placer)) {
  throw_if_error(client_->begin_origin(origin_));
}

ParameterServerHome::~ParameterServerHome() {
  // Whoever cannot be told has lost its variables, and forgets the origin with them.
  client_->end_origin(origin_, std::chrono::seconds(2)).IgnoreError();
}

void ParameterServerHome::adopt(const std::shared_ptr<VariableRecord>& variable) {
  variable->at_home = std::make_shared<AtHome>();
  MutexLock lock(making_);
  new_.push_back(variable);
}

void ParameterServerHome::make_new_ones() {
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
  Placer placer = placer_;  // if it fails, the next attempt places them as this one does
  for (VariableLayout& layout : placer.place(specs)) {
    made.push_back({std::move(layout), records[made.size()]->tensor.detach()});
  }
  const auto variables = value_or_throw(client_->create(made));
  for (size_t i = 0; i < records.size(); ++i) {
    static_cast<AtHome*>(records[i]->at_home.get())->variable = variables[i];
  }
  placer_ = std::move(placer);
  new_.clear();
}

PsVariable ParameterServerHome::at_home(const VariableRecord& variable) {
  make_new_ones();
  return made(variable);
}

std::vector<std::string> ParameterServerHome::devices(const VariableRecord& variable) {
  std::vector<std::string> devices;
  for (const VariableLayout::Shard& shard : at_home(variable).layout().shards) {
    devices.push_back(TaskId{"ps", shard.server}.to_string());
  }
  return devices;
}

at::Tensor ParameterServerHome::read(const VariableRecord& variable) {
  return value_or_throw(client_->pull({{at_home(variable)}})).front();
}

void ParameterServerHome::change(const VariableRecord& variable, Change change,
                                 const at::Tensor& value) {
  const OwnWork own;
  const auto kind = change == Change::kAdd ? Update::Kind::kAdd : Update::Kind::kAssign;
  throw_if_error(client_->write(
      {{at_home(variable), kind, {}, value.detach().to(variable.tensor.scalar_type())}}));
}

void ParameterServerHome::set_optimizer(const VariableRecords& variables, const std::string& rule,
                                        const std::map<std::string, double>& options) {
  std::vector<PsVariable> there;
  for (const auto& variable : variables) there.push_back(at_home(*variable));
  throw_if_error(client_->set_optimizer(there, *make_rule(rule, options)));
}

void ParameterServerHome::push_gradients(const VariableRecords& variables,
                                         const std::vector<at::Tensor>& gradients, double lr) {
  std::vector<PsPush> pushes;
  for (size_t i = 0; i < variables.size(); ++i) {
    pushes.push_back({at_home(*variables[i]), Update::Kind::kGradient, {}, gradients[i].detach()});
  }
  const uint64_t sequence = begin_sequence();
  const absl::Status status =
      client_->push(pushes, {.id = {origin_, sequence, 0}, .watermark = watermark(), .lr = lr});
  end_sequence(sequence);
  throw_if_error(status);
}

uint64_t ParameterServerHome::begin_sequence() {
  MutexLock lock(mutex_);
  under_way_.insert(next_sequence_);
  return next_sequence_++;
}

void ParameterServerHome::end_sequence(uint64_t sequence) {
  MutexLock lock(mutex_);
  under_way_.erase(sequence);
}

uint64_t ParameterServerHome::watermark() {
  MutexLock lock(mutex_);
  return under_way_.empty() ? next_sequence_ : *under_way_.begin();
}

std::shared_ptr<const StepProgram> ParameterServerHome::program_of(
    const FunctionStep& step, const std::vector<bool>& on_servers) {
  {
    MutexLock lock(mutex_);
    const auto found = programs_.find(step.plan.get());
    // Another plan may have come to lie where one that is gone was.
    if (found != programs_.end() && found->second.plan.lock() == step.plan) {
      return found->second.program;
    }
  }
  auto program = std::make_shared<const StepProgram>(
      value_or_throw(make_step_program(*step.plan, on_servers)));
  MutexLock lock(mutex_);
  std::erase_if(programs_, [](const auto& known) { return known.second.plan.expired(); });
  programs_[step.plan.get()] = {step.plan, program};
  return program;
}

std::vector<at::Tensor> ParameterServerHome::run(const FunctionStep& step,
                                                 const StepOptions& options) {
  std::vector<bool> on_servers;
  std::vector<std::optional<PsVariable>> variables;
  std::vector<at::Tensor> own;
  make_new_ones();
  for (const auto& variable : step.variables) {
    on_servers.push_back(variable->home != nullptr);
    own.push_back(variable->home == nullptr ? variable->tensor : at::Tensor());
    variables.push_back(variable->home == nullptr ? std::nullopt : std::optional(made(*variable)));
  }
  const auto program = program_of(step, on_servers);
  StepProgramRun run(program, std::move(variables), std::move(own), step.inputs, step.seed,
                     step.step);
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
        client_->push(run.pushes(round), {.id = {origin_, sequence, static_cast<uint32_t>(round)},
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

std::shared_ptr<internal::ParameterServerHome> connect(const ClusterSpec& spec,
                                                       const ParameterServersOptions& options) {
  auto client = value_or_throw(
      PsClient::connect({.spec = spec,
                         .container = options.container,
                         .credentials = value_or_throw(Credentials::of_program(options.certs))},
                        after(options.connect_timeout)));
  const int servers = client->servers();
  return std::make_shared<internal::ParameterServerHome>(
      std::move(client), Placer(servers, options.placement, options.partitioner));
}

}  // namespace

ParameterServers::ParameterServers(const ClusterSpec& spec, ParameterServersOptions options)
    : home_(connect(spec, options)) {}

ParameterServers::Scope::Scope(std::unique_ptr<internal::HomeScope> scope)
    : scope_(std::move(scope)) {}
ParameterServers::Scope::~Scope() = default;
ParameterServers::Scope::Scope(Scope&&) noexcept = default;

ParameterServers::Scope ParameterServers::scope() const {
  return Scope(std::make_unique<internal::HomeScope>(home_));
}

}  // namespace trireme
