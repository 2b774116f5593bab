// A module's state is compared on every call of a captured function, so the comparison walks the
// tree of submodules in the order in which the snapshot listed it and stops at the first
// difference. Modules and parameters are compared by address. A snapshot pins these addresses by
// weak references, so that a new object cannot take the place of one that is gone.
#include "trireme/function/module_states.h"

#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>

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
  return rate_in<DropoutImpl, Dropout2dImpl, Dropout3dImpl, AlphaDropoutImpl,
                 FeatureAlphaDropoutImpl>(module);
}

}  // namespace

struct ModuleStates::Tree {
  struct Parameter {
    c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl> pin;
    const c10::TensorImpl* address;
    bool requires_grad;
  };
  // One module of the tree. Submodules follow, depth first.
  struct Part {
    std::weak_ptr<const Module> pin;
    const Module* address;
    bool training;
    const double* rate_address;
    double rate;
    std::vector<Parameter> parameters;
  };

  explicit Tree(const std::shared_ptr<Module>& module) : root(module) { add(module); }

  bool is_current() const {
    const auto module = root.lock();
    if (module == nullptr) return true;
    size_t next = 0;
    return matches(*module, next) && next == parts.size();
  }

  std::weak_ptr<Module> root;
  std::vector<Part> parts;

 private:
  void add(const std::shared_ptr<Module>& module) {
    Part part{module, module.get(), module->is_training(), dropout_rate(*module), 0, {}};
    if (part.rate_address != nullptr) part.rate = *part.rate_address;
    for (const auto& parameter : Parameters::of(*module)) {
      const auto& tensor = parameter.value();
      part.parameters.push_back({c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>(
                                     tensor.getIntrusivePtr()),
                                 tensor.unsafeGetTensorImpl(),
                                 tensor.defined() && tensor.requires_grad()});
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
    for (size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor& tensor = parameters[i].value();
      if (part.parameters[i].address != tensor.unsafeGetTensorImpl()) return false;
      if (tensor.defined() && tensor.requires_grad() != part.parameters[i].requires_grad) {
        return false;
      }
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

}  // namespace trireme::internal
