#include "trireme/graph/module.h"

#include <torch/nn/module.h>

#include "trireme/base/mutex.h"
#include "trireme/graph/training_modes.h"
#include "trireme/graph/variable_registry.h"

namespace trireme {
namespace {

struct Tracked {
  std::weak_ptr<torch::nn::Module> root;
  std::shared_ptr<const std::vector<const torch::nn::Module*>> parts;
};

struct TrackedModules {
  Mutex mutex;
  std::vector<Tracked> modules ABSL_GUARDED_BY(mutex);
};

TrackedModules& tracked_modules() {
  static auto* tracked = new TrackedModules;
  return *tracked;
}

void remember(torch::nn::Module& module) {
  // Empty for a module that no shared pointer owns; its mode is then not watched.
  const std::weak_ptr<torch::nn::Module> root = module.weak_from_this();
  if (root.expired()) return;
  TrackedModules& tracked = tracked_modules();
  MutexLock lock(tracked.mutex);
  std::erase_if(tracked.modules, [&](const Tracked& known) {
    return known.root.expired() || known.parts->front() == &module;
  });
  auto parts = std::make_shared<std::vector<const torch::nn::Module*>>();
  for (const auto& part : module.modules(/*include_self=*/true)) parts->push_back(part.get());
  tracked.modules.push_back({root, std::move(parts)});
}

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

std::vector<Variable> track(torch::nn::Module& module, const std::string& name) {
  remember(module);
  std::vector<Variable> variables;
  for (const auto& parameter : module.named_parameters()) {
    variables.emplace_back(internal::add_owned_elsewhere(
        {join(name, parameter.key()), parameter.value(), /*trainable=*/true, ""}));
  }
  for (const auto& buffer : module.named_buffers()) {
    if (!buffer.value().defined()) continue;
    variables.emplace_back(internal::add_owned_elsewhere(
        {join(name, buffer.key()), buffer.value(), /*trainable=*/false, ""}));
  }
  return variables;
}

namespace internal {
namespace {

std::string training_of(const std::vector<const torch::nn::Module*>& parts) {
  std::string training(parts.size(), 'e');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->is_training()) training[i] = 't';
  }
  return training;
}

}  // namespace

TrainingModes TrainingModes::now() {
  TrainingModes modes;
  TrackedModules& tracked = tracked_modules();
  MutexLock lock(tracked.mutex);
  for (const Tracked& entry : tracked.modules) {
    const auto root = entry.root.lock();
    if (root != nullptr) modes.modules_.push_back({root, entry.parts, training_of(*entry.parts)});
  }
  return modes;
}

bool TrainingModes::still_hold() const {
  for (const Modes& modes : modules_) {
    const auto root = modes.root.lock();
    if (root != nullptr && training_of(*modes.parts) != modes.training) return false;
  }
  return true;
}

}  // namespace internal
}  // namespace trireme
