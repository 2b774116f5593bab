#include "trireme/train/checkpoint_objects.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/checkpoint/manifest_check.h"
#include "trireme/coordinator/worker_resource.h"
#include "trireme/data/used_numbers.h"
#include "trireme/optim/update_rule.h"

namespace trireme::internal {
namespace {

constexpr char kProgramFile[] = "program.safetensors";

at::Tensor copy_of(const Variable& variable) {
  return variable.read().detach().clone(at::MemoryFormat::Contiguous);
}

}  // namespace

std::string CheckpointedVariable::rule() const {
  return optimizer == nullptr ? "" : Access<Optimizer>::rule(*optimizer).name();
}

std::vector<std::string> CheckpointedVariable::slot_names() const {
  std::vector<std::string> names;
  if (optimizer == nullptr) return names;
  for (const Slot& slot : Access<Optimizer>::rule(*optimizer).slots()) names.push_back(slot.name);
  return names;
}

std::string CheckpointedIterator::dataset() const {
  if (!per_worker()) return Access<Iterator>::describe(std::get<Iterator>(source));
  return std::get<0>(source)->describe();
}

std::vector<SavedPosition> CheckpointedIterator::positions() const {
  std::vector<IteratorPosition> positions;
  if (per_worker()) {
    positions = value_or_throw(std::get<0>(source)->positions());
  } else {
    positions.push_back(Access<Iterator>::position(std::get<Iterator>(source)));
  }
  std::vector<SavedPosition> saved;
  for (auto& position : positions) {
    saved.push_back({position.seed, position.next, std::move(position.returned)});
  }
  return saved;
}

void CheckpointedIterator::restore(const std::vector<SavedPosition>& saved) const {
  std::vector<IteratorPosition> positions;
  for (const SavedPosition& position : saved) {
    positions.push_back({position.seed, position.next, position.returned});
  }
  if (per_worker()) {
    throw_if_error(std::get<0>(source)->restore(positions));
  } else {
    Access<Iterator>::restore(std::get<Iterator>(source), positions.at(0));
  }
}

CheckpointObjects::CheckpointObjects(const std::vector<Checkpointed>& objects) {
  for (const Checkpointed& object : objects) {
    const auto& value = Access<Checkpointed>::object(object);
    const std::string iterator = absl::StrCat("iterator_", iterators_.size());
    if (const auto* variables = std::get_if<std::vector<Variable>>(&value)) {
      for (const Variable& variable : *variables) add(variable);
    } else if (const auto* optimizer = std::get_if<Optimizer>(&value)) {
      add(*optimizer);
    } else if (const auto* data = std::get_if<PerWorkerDataset>(&value)) {
      iterators_.push_back(
          {iterator, Access<PerWorkerValues<Iterator>>::resource(data->iterator())});
    } else if (const auto* text = std::get_if<CheckpointedText>(&value)) {
      add(*text);
    } else {
      Access<Iterator>::position(std::get<Iterator>(value));  // throws if it has none
      iterators_.push_back({iterator, std::get<Iterator>(value)});
    }
  }
  if (variables_.empty() && iterators_.empty() && texts_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the CheckpointManager was given nothing to save; give it modules, optimizers, "
                "variables, data, or texts");
  }
  if (workers_ != nullptr || backend_ != nullptr) return;
  // Data and texts do not know the workers, each of which would write as the chief.
  if (const auto& scope = current_backend(); scope != nullptr && scope->workers() != nullptr) {
    scope_ = scope;
    workers_ = scope->workers();
  }
}

CheckpointedVariable& CheckpointObjects::add(const Variable& variable) {
  const auto& record = Access<Variable>::record(variable);
  const auto [place, is_new] = places_.try_emplace(record.get(), variables_.size());
  if (!is_new) return variables_[place->second];
  if (auto backend = std::dynamic_pointer_cast<ParameterServerBackend>(record->backend)) {
    if (backend_ != nullptr && backend != backend_) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("variable '", record->name,
                               "' is on other parameter servers than the variables before it; make "
                               "a CheckpointManager with a folder of its own for each strategy"));
    }
    backend_ = std::move(backend);
  }
  WorkerGroup* const workers = record->backend == nullptr ? nullptr : record->backend->workers();
  if (workers != nullptr) {
    if (workers_ != nullptr && workers != workers_) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("variable '", record->name,
                               "' belongs to another strategy than the variables before it; make a "
                               "CheckpointManager with a folder of its own for each strategy"));
    }
    workers_ = workers;
  }
  return variables_.emplace_back(CheckpointedVariable{variable, nullptr, {}});
}

void CheckpointObjects::add(const Optimizer& given) {
  const Optimizer& optimizer = *optimizers_.emplace_back(std::make_unique<const Optimizer>(given));
  const std::vector<Variable>& trained = optimizer.variables();
  const auto& slots = Access<Optimizer>::slots(optimizer);
  for (size_t i = 0; i < trained.size(); ++i) {
    CheckpointedVariable& variable = add(trained[i]);
    if (variable.optimizer != nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("variable '", trained[i].name(),
                               "' has two optimizers, and a checkpoint has the state of one; save "
                               "them with two managers that have folders of their own"));
    }
    variable.optimizer = &optimizer;
    for (const auto& slot : slots) variable.slots.push_back(slot[i]);
  }
}

void CheckpointObjects::add(const CheckpointedText& text) {
  throw_if_error(check_texts({{text.name, ""}}));
  const bool known = std::ranges::any_of(
      texts_, [&](const CheckpointedText& other) { return other.name == text.name; });
  if (known || !text.save || !text.restore) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("text '", text.name, "' ",
                             known ? "is given twice to the CheckpointManager; give each text a "
                                     "name of its own"
                                   : "cannot be saved: set the functions `save` and `restore`"));
  }
  texts_.push_back(text);
}

std::vector<PsVariable> CheckpointObjects::ps_variables() const {
  std::vector<PsVariable> there;
  for (const CheckpointedVariable& variable : variables_) {
    if (variable.on_servers()) there.push_back(backend_->ps_variable(variable.record()));
  }
  return there;
}

ProgramCopy::ProgramCopy(const CheckpointObjects& objects) {
  const at::NoGradGuard no_gradients;
  const SuspendDeviceCheck no_device_check;
  for (const CheckpointedVariable& variable : objects.variables()) {
    if (variable.on_servers()) continue;
    const at::Tensor contents = copy_of(variable.variable);
    const std::string& name = variable.variable.name();
    SavedVariable saved{.name = name,
                        .dtype = contents.scalar_type(),
                        .sizes = contents.sizes().vec(),
                        .trainable = variable.variable.trainable(),
                        .rule = variable.rule(),
                        .slots = variable.slot_names()};
    SavedShard& shard = saved.shards.emplace_back();
    shard.count = saved.rows();
    add(name, contents);
    for (size_t i = 0; i < variable.slots.size(); ++i) {
      add(absl::StrCat(name, "#", saved.slots[i]), copy_of(variable.slots[i]));
    }
    if (const Optimizer* optimizer = variable.optimizer) {
      saved.options = Access<Optimizer>::rule(*optimizer).options();
      shard.step = Access<Optimizer>::step(*optimizer).read().item<double>();
    }
    variables_.push_back(std::move(saved));
  }
}

void ProgramCopy::add(const std::string& name, const at::Tensor& tensor) {
  tensors_.push_back(
      {name, tensor.scalar_type(), tensor.sizes().vec(), tensor.const_data_ptr(), tensor.nbytes()});
  copies_.push_back(tensor);
}

absl::Status ProgramCopy::write(Files& files, const std::string& folder, Manifest& manifest) const {
  if (empty()) return absl::OkStatus();
  TRIREME_ASSIGN_OR_RETURN(WrittenFile written,
                           write_tensor_file(files, join_path(folder, kProgramFile), tensors_));
  for (SavedTensor& tensor : written.tensors) {
    tensor.file = static_cast<int>(manifest.files.size());
  }
  manifest.files.push_back(std::move(written.file));
  auto tensor = written.tensors.begin();
  for (SavedVariable variable : variables_) {
    variable.shards[0].contents = *tensor++;
    for (size_t i = 0; i < variable.slots.size(); ++i) {
      variable.shards[0].slots.push_back(*tensor++);
    }
    manifest.variables.push_back(std::move(variable));
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
