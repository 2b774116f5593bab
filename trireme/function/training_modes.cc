#include "trireme/function/training_modes.h"

#include <torch/nn/module.h>

#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

// A watched module and its submodules.
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

std::string training_of(const std::vector<const torch::nn::Module*>& parts) {
  std::string training(parts.size(), 'e');
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->is_training()) training[i] = 't';
  }
  return training;
}

}  // namespace

void watch_training_mode(torch::nn::Module& module) {
  // Expired for a module that no shared pointer owns. Such a module cannot be watched, since
  // nothing tells when it is gone.
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

bool TrainingModes::are_current() const {
  for (const Modes& modes : modules_) {
    const auto root = modes.root.lock();
    if (root != nullptr && training_of(*modes.parts) != modes.training) return false;
  }
  return true;
}

}  // namespace trireme::internal
