// The order of a restore: first everything that can fail is read and compared, then the servers
// load their variables, and then the program's own state is set, which cannot fail any more, except
// in iterators and in the functions that take its texts. So a damaged checkpoint leaves the program
// as it was, except for variables on servers, which the next restore overwrites. Workers that train
// together agree between read() and assign(), so none of them has new variables if another could
// not read its own.
#include "trireme/train/checkpoint_restore.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/exec/random.h"
#include "trireme/function/function_count.h"
#include "trireme/ps/ps_saver.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

std::string kind_of(at::ScalarType dtype, at::IntArrayRef sizes) {
  return absl::StrCat(dtype_name(dtype), format_shape(sizes));
}

std::string state_of(const std::string& rule, const std::vector<std::string>& slots) {
  if (rule.empty()) return "none";
  return absl::StrCat("'", rule, "' with the slots [", absl::StrJoin(slots, ", "), "]");
}

bool at_the_beginning(const SavedIterator& iterator) {
  return std::ranges::all_of(iterator.positions,
                             [](const SavedPosition& position) { return position.next == 0; });
}

}  // namespace

CheckpointRestore::CheckpointRestore(const CheckpointObjects& objects,
                                     const CheckpointReader& reader, const RestoreOptions& options,
                                     const std::vector<std::string>& names)
    : objects_(objects), reader_(reader), options_(options), names_(names) {
  match_variables();
  if (options_.patterns.empty()) {
    match_iterators();
    match_texts();
  }
  if (!differences_.empty() && !options_.partial) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the checkpoint differs from the objects of the CheckpointManager:",
                             absl::StrJoin(differences_, "",
                                           [](std::string* out, const std::string& difference) {
                                             absl::StrAppend(out, "\n  ", difference);
                                           }),
                             "\nMake the same objects in the same order as the program that saved "
                             "it, or restore what agrees with RestoreOptions{.partial = true}"),
                {"", absl::StrCat("checkpoint '", reader.path(), "'")});
  }
  if (variables_.empty() && iterators_.empty() && texts_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "nothing in the checkpoint has a name of the CheckpointManager's objects that the "
                "options select",
                {"", absl::StrCat("checkpoint '", reader.path(), "'")});
  }
}

void CheckpointRestore::match_variables() {
  std::map<std::string, const SavedVariable*> saved;
  for (const SavedVariable& variable : reader_.manifest().variables) {
    if (is_selected(options_, variable.name)) saved[variable.name] = &variable;
  }
  for (size_t i = 0; i < objects_.variables().size(); ++i) {
    const CheckpointedVariable& target = objects_.variables()[i];
    const std::string& name = names_.at(i);
    if (!is_selected(options_, name)) continue;
    const auto found = saved.extract(name);
    if (!found) {
      differences_.push_back(absl::StrCat("variable '", name, "' is not in the checkpoint"));
      continue;
    }
    if (!fits(target, *found.mapped())) continue;
    const bool slots = same_state(target, *found.mapped()) && target.optimizer != nullptr;
    variables_.push_back({target, *found.mapped(), slots});
  }
  for (const auto& [name, variable] : saved) {
    differences_.push_back(
        absl::StrCat("variable '", name, "' of the checkpoint is not among the objects"));
  }
}

bool CheckpointRestore::fits(const CheckpointedVariable& target, const SavedVariable& saved) {
  const at::Tensor& tensor = target.record().tensor;
  if (tensor.scalar_type() == saved.dtype && tensor.sizes() == at::IntArrayRef(saved.sizes)) {
    return true;
  }
  differences_.push_back(absl::StrCat("variable '", saved.name, "' is ",
                                      kind_of(tensor.scalar_type(), tensor.sizes()), ", and ",
                                      kind_of(saved.dtype, saved.sizes), " in the checkpoint"));
  return false;
}

bool CheckpointRestore::same_state(const CheckpointedVariable& target, const SavedVariable& saved) {
  const std::vector<std::string> slots = target.slot_names();
  if (target.rule() == saved.rule && slots == saved.slots) return true;
  differences_.push_back(absl::StrCat("the optimizer of variable '", saved.name, "' is ",
                                      state_of(target.rule(), slots), ", and ",
                                      state_of(saved.rule, saved.slots), " in the checkpoint"));
  return false;
}

void CheckpointRestore::match_iterators() {
  std::map<std::string, const SavedIterator*> saved;
  for (const SavedIterator& iterator : reader_.manifest().iterators) {
    saved[iterator.name] = &iterator;
  }
  for (const CheckpointedIterator& target : objects_.iterators()) {
    const auto found = saved.extract(target.name);
    if (!found) {
      differences_.push_back(absl::StrCat(target.name, " is not in the checkpoint"));
    } else if (fits(target, *found.mapped())) {
      iterators_.push_back({target, *found.mapped()});
    }
  }
  for (const auto& [name, iterator] : saved) {
    differences_.push_back(absl::StrCat(name, " of the checkpoint, over ", iterator->dataset,
                                        ", is not among the objects"));
  }
}

void CheckpointRestore::match_texts() {
  std::map<std::string, const std::string*> saved;
  for (const auto& [name, text] : reader_.manifest().texts) saved[name] = &text;
  for (const CheckpointedText& target : objects_.texts()) {
    const auto found = saved.extract(target.name);
    if (found) {
      texts_.push_back({target, *found.mapped()});
    } else {
      differences_.push_back(absl::StrCat("text '", target.name, "' is not in the checkpoint"));
    }
  }
  for (const auto& [name, text] : saved) {
    differences_.push_back(
        absl::StrCat("text '", name, "' of the checkpoint is not among the objects"));
  }
}

bool CheckpointRestore::fits(const CheckpointedIterator& target, const SavedIterator& saved) {
  // The workers of a group have different parts of a dataset. That of worker 0 is described.
  const bool is_described = objects_.workers() == nullptr || objects_.workers()->worker() == 0;
  const std::string dataset = target.dataset();
  if (is_described && dataset != saved.dataset) {
    differences_.push_back(absl::StrCat(target.name, " is over ", dataset, ", and over ",
                                        saved.dataset, " in the checkpoint"));
    return false;
  }
  const size_t workers = workers_of(target);
  if (workers == saved.positions.size() || (target.per_worker() && at_the_beginning(saved))) {
    return true;
  }
  differences_.push_back(
      absl::StrCat(target.name, " has the positions of ", saved.positions.size(),
                   " worker(s) in the checkpoint, and the program has ", workers,
                   ": which elements are left cannot be divided among another number of workers"));
  return false;
}

size_t CheckpointRestore::workers_of(const CheckpointedIterator& target) const {
  return objects_.workers() != nullptr ? objects_.workers()->workers() : target.positions().size();
}

void CheckpointRestore::read() {
  const at::NoGradGuard no_gradients;
  const SuspendDeviceCheck no_device_check;
  for (const Restored& restored : variables_) {
    if (restored.target.on_servers()) continue;
    values_.emplace_back(&restored.target.variable, value_or_throw(reader_.read(restored.saved)));
    for (size_t i = 0; restored.slots && i < restored.target.slots.size(); ++i) {
      values_.emplace_back(&restored.target.slots[i],
                           value_or_throw(reader_.read_slot(restored.saved, static_cast<int>(i))));
    }
  }
  load_server_variables();
}

void CheckpointRestore::assign() {
  const at::NoGradGuard no_gradients;
  const SuspendDeviceCheck no_device_check;
  for (const auto& [variable, value] : values_) variable->assign(value);
  restore_optimizers();
  for (const RestoredIterator& iterator : iterators_) {
    if (objects_.workers() == nullptr) {
      iterator.target.restore(iterator.saved.positions);
    } else {
      iterator.target.restore({iterator.saved.positions.at(objects_.workers()->worker())});
    }
  }
  if (!options_.patterns.empty()) return;
  restore_function_counts(reader_.manifest().functions);
  set_seed(reader_.manifest().seed);
  // A function of the program may throw, so it comes last.
  for (const RestoredText& text : texts_) text.target.restore(text.saved);
}

void CheckpointRestore::load_server_variables() const {
  std::vector<PsLoad> loads;
  for (const Restored& restored : variables_) {
    if (!restored.target.on_servers()) continue;
    loads.push_back({objects_.backend()->ps_variable(restored.target.record()), &restored.saved,
                     restored.slots});
  }
  if (loads.empty()) return;
  throw_if_error(ps_load(objects_.backend()->client(), reader_.path(), reader_.manifest(), loads));
}

void CheckpointRestore::restore_optimizers() const {
  for (const auto& optimizer : objects_.optimizers()) {
    double step = -1;
    std::optional<double> lr;
    for (const Restored& restored : variables_) {
      if (restored.target.optimizer != optimizer.get() || !restored.slots) continue;
      // Servers count the updates of each shard, a program those of the whole optimizer.
      for (const SavedShard& shard : restored.saved.shards) step = std::max(step, shard.step);
      const auto found = restored.saved.options.find("lr");
      if (found != restored.saved.options.end()) lr = found->second;
    }
    if (step >= 0) {
      Access<Optimizer>::step(*optimizer).assign(at::full({}, step, at::kFloat));
    }
    if (lr && options_.patterns.empty()) optimizer->set_lr(*lr);
  }
}

}  // namespace trireme::internal
