// The step's own generator covers operators that take a generator. Some operators do not, and draw
// from LibTorch's default generator, which the whole process shares. For one such call the default
// generator gets the state of the step's generator, and afterwards the two states are moved back.
// borrow_mutex() keeps two steps from doing so at the same time. It is always locked before the
// mutex of a generator.
#include "trireme/exec/step_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

#include "trireme/base/mutex.h"
#include "trireme/exec/random.h"

namespace trireme::internal {
namespace {

// Held while the default generator's state is replaced. Never destroyed.
Mutex& borrow_mutex() {
  static auto* mutex = new Mutex;
  return *mutex;
}

at::Generator default_generator_of(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state_of(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// The seed that stands for "not seeded" during captures.
constexpr uint64_t kWatchedSeed = 0x7472697265 ^ 0x5eed5eed5eed5eed;

// The captures under way. Guarded by borrow_mutex().
struct Watch {
  int captures = 0;
  at::Tensor before;  // state of the default generator before the first of them
};

Watch& watch() {
  static auto* instance = new Watch;
  return *instance;
}

void set_seed_of(at::Generator& generator, uint64_t seed) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

at::Generator make_device_generator(c10::Device device, uint64_t seed) {
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(device.type())
                                .getNewGenerator(device.index());
  set_seed_of(generator, seed);
  return generator;
}

at::Generator make_step_generator(uint64_t seed, uint64_t step) {
  return at::detail::createCPUGenerator(step_seed(seed, step));
}

// The lock is held from the constructor to the destructor, which the thread-safety analysis cannot
// follow.
BorrowDefaultGenerator::BorrowDefaultGenerator(at::Generator& step_generator)
    ABSL_NO_THREAD_SAFETY_ANALYSIS : step_generator_(step_generator) {
  borrow_mutex().lock();
  at::Generator shared = default_generator_of(step_generator_.device());
  saved_ = state_of(shared);
  set_state_of(shared, state_of(step_generator_));
}

BorrowDefaultGenerator::~BorrowDefaultGenerator() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  at::Generator shared = default_generator_of(step_generator_.device());
  set_state_of(step_generator_, state_of(shared));
  set_state_of(shared, saved_);
  borrow_mutex().unlock();
}

WatchDefaultGenerator::WatchDefaultGenerator() {
  MutexLock lock(borrow_mutex());
  if (watch().captures++ > 0) return;
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  watch().before = state_of(shared);
  set_seed_of(shared, kWatchedSeed);
}

WatchDefaultGenerator::~WatchDefaultGenerator() {
  MutexLock lock(borrow_mutex());
  if (--watch().captures > 0) return;
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  set_state_of(shared, watch().before);
  watch().before = at::Tensor();
}

bool WatchDefaultGenerator::was_seeded() const {
  MutexLock lock(borrow_mutex());
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> generator_lock(shared.mutex());
  return shared.current_seed() != kWatchedSeed;
}

}  // namespace trireme::internal
