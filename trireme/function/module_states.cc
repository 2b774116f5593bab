// A module's state is compared on every call of a captured function, so the comparison walks the
// tree of submodules in the order in which the snapshot listed it and stops at the first
// difference. Modules and parameters are compared by address. A snapshot pins these addresses by
// weak references, so that a new object cannot take the place of one that is gone.
#include "trireme/function/module_states.h"

#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

using torch::nn::Module;

struct WatchedModules {
  Mutex mutex;
  std::vector<std::weak_ptr<Module>> modules ABSL_GUARDED_BY(mutex);
};

WatchedModules& watched_modules() {
  static auto* watched = new WatchedModules;
  return *watched;
}

std::vector<std::shared_ptr<Module>> live_modules() {
  WatchedModules& watched = watched_modules();
  MutexLock lock(watched.mutex);
  std::vector<std::shared_ptr<Module>> live;
  for (const auto& weak : watched.modules) {
    if (auto module = weak.lock()) live.push_back(std::move(module));
  }
  return live;
}

// Gives access to the parameters of a module without a copy of the list.
struct Parameters : Module {
  static const torch::OrderedDict<std::string, torch::Tensor>& of(const Module& module) {
    return module.*&Parameters::parameters_;
  }
};

template <typename... Layers>
const double* rate_in(const Module& module) {
  const double* rate = nullptr;
  const auto look = [&]<typename Layer>(const Layer* layer) {
    if (layer != nullptr) rate = &layer->options.p();
  };
  (look(dynamic_cast<const Layers*>(&module)), ...);
  return rate;
}

// Returns where a dropout layer keeps its rate; null for any other module.
const double* dropout_rate(const Module& module) {
  using namespace torch::nn;
  if (const auto* layer = dynamic_cast<const MultiheadAttentionImpl*>(&module)) {
    return &layer->options.dropout();
  }
  if (const auto* layer = dynamic_cast<const LSTMImpl*>(&module)) {
    return &layer->options_base.dropout();
  }
  if (const auto* layer = dynamic_cast<const GRUImpl*>(&module)) {
    return &layer->options_base.dropout();
  }
  if (const auto* layer = dynamic_cast<const RNNImpl*>(&module)) {
    return &layer->options_base.dropout();
  }
  return rate_in<DropoutImpl, Dropout2dImpl, Dropout3dImpl, AlphaDropoutImpl,
                 FeatureAlphaDropoutImpl>(module);
}

}  // namespace

struct ModuleStates::Tree {
  struct Member {
    c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl> pin;
    const c10::TensorImpl* address;
    bool requires_grad;

    explicit Member(const torch::Tensor& tensor)
        : pin(tensor.getIntrusivePtr()),
          address(tensor.unsafeGetTensorImpl()),
          requires_grad(tensor.defined() && tensor.requires_grad()) {}
    bool is(const torch::Tensor& tensor) const {
      return address == tensor.unsafeGetTensorImpl() &&
             (!tensor.defined() || tensor.requires_grad() == requires_grad);
    }
  };
  // One module of the tree. Submodules follow, depth first.
  struct Part {
    std::weak_ptr<const Module> pin;
    const Module* address;
    bool training;
    const double* rate_address;
    double rate;
    std::vector<Member> parameters;
    std::vector<Member> buffers;
  };

  explicit Tree(const std::shared_ptr<Module>& module) : root(module) { add(module); }

  bool is_current() const {
    const auto module = root.lock();
    if (module == nullptr) return true;
    size_t next = 0;
    return matches(*module, next) && next == parts.size();
  }

  bool is_gone() const { return root.expired(); }

  // Returns true if a parameter or buffer that still lives is in one of the storages.
  bool has_one_of(const std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& storages) const {
    const auto is_used = [&](const Member& member) {
      const auto tensor = member.pin.lock();
      if (!tensor.defined() || !tensor->has_storage()) return false;
      const c10::StorageImpl* storage = tensor->storage().unsafeGetStorageImpl();
      return std::ranges::any_of(
          storages, [&](const auto& used) { return used._unsafe_get_target() == storage; });
    };
    return std::ranges::any_of(parts, [&](const Part& part) {
      return std::ranges::any_of(part.parameters, is_used) ||
             std::ranges::any_of(part.buffers, is_used);
    });
  }

  std::weak_ptr<Module> root;
  std::vector<Part> parts;

 private:
  void add(const std::shared_ptr<Module>& module) {
    Part part{module, module.get(), module->is_training(), dropout_rate(*module), 0, {}, {}};
    if (part.rate_address != nullptr) part.rate = *part.rate_address;
    for (const auto& parameter : Parameters::of(*module)) {
      part.parameters.emplace_back(parameter.value());
    }
    for (const torch::Tensor& buffer : module->buffers(/*recurse=*/false)) {
      part.buffers.emplace_back(buffer);
    }
    parts.push_back(std::move(part));
    for (const auto& child : module->children()) add(child);
  }

  bool matches(const Module& module, size_t& next) const {
    if (next == parts.size()) return false;
    const Part& part = parts[next++];
    if (part.address != &module || part.training != module.is_training()) return false;
    if (part.rate_address != nullptr && *part.rate_address != part.rate) return false;
    const auto& parameters = Parameters::of(module);
    if (parameters.size() != part.parameters.size()) return false;
    for (size_t j = 0; j < parameters.size(); ++j) {
      if (!part.parameters[j].is(parameters[j].value())) return false;
    }
    // A list of buffers can only be had as a copy, so modules that had none are not asked.
    if (!part.buffers.empty() &&
        !std::ranges::equal(part.buffers, module.buffers(/*recurse=*/false),
                            [](const Member& a, const torch::Tensor& b) { return a.is(b); })) {
      return false;
    }
    for (const auto& child : module.children()) {
      if (!matches(*child, next)) return false;
    }
    return true;
  }
};

void watch_module(Module& module) {
  const std::weak_ptr<Module> root = module.weak_from_this();
  if (root.expired()) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("module '", module.name(),
                             "' is not owned by a shared pointer, so captured functions would not "
                             "notice its train() and eval(). Make it with std::make_shared, or as "
                             "a module holder (TORCH_MODULE)"));
  }
  WatchedModules& watched = watched_modules();
  MutexLock lock(watched.mutex);
  std::erase_if(watched.modules, [&](const std::weak_ptr<Module>& known) {
    return known.expired() || known.lock().get() == &module;
  });
  watched.modules.push_back(root);
}

bool is_watched_dropout(double rate, bool training) {
  for (const auto& root : live_modules()) {
    for (const auto& module : root->modules(/*include_self=*/true)) {
      const double* known = dropout_rate(*module);
      if (known != nullptr && *known == rate && module->is_training() == training) return true;
    }
  }
  return false;
}

ModuleStates ModuleStates::now() {
  ModuleStates states;
  for (const auto& module : live_modules()) {
    states.trees_.push_back(std::make_shared<const Tree>(module));
  }
  return states;
}

bool ModuleStates::are_current() const {
  for (const auto& tree : trees_) {
    if (!tree->is_current()) return false;
  }
  return true;
}

bool ModuleStates::lost_module_with(
    const std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& storages) const {
  return std::ranges::any_of(
      trees_, [&](const auto& tree) { return tree->is_gone() && tree->has_one_of(storages); });
}

}  // namespace trireme::internal
