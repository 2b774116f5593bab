#include "trireme/exec/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <atomic>

#include "trireme/base/mutex.h"

namespace trireme {
namespace {

std::atomic<uint64_t> program_seed = 0;

Mutex& borrow_mutex() {
  static auto* mutex = new Mutex;
  return *mutex;
}

// SplitMix64's finalizer: neighbouring steps get unrelated seeds.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

at::Tensor state_of(at::Generator& generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state_of(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

constexpr uint64_t kWatchedSeed = 0x7472697265 ^ 0x5eed5eed5eed5eed;

// Guarded by borrow_mutex().
struct Watch {
  int captures = 0;
  at::Tensor before;
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

void set_seed(uint64_t seed) {
  program_seed = seed;
}

uint64_t current_seed() {
  return program_seed;
}

uint64_t step_seed(uint64_t seed, uint64_t step) {
  return mix(mix(seed) ^ step);
}

void seed_step(uint64_t seed, uint64_t step) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  set_seed_of(generator, step_seed(seed, step));
}

namespace internal {

at::Generator make_step_generator(uint64_t seed, uint64_t step) {
  return at::detail::createCPUGenerator(step_seed(seed, step));
}

// The lock is held from the constructor to the destructor, which the analysis cannot follow.
BorrowDefaultGenerator::BorrowDefaultGenerator(at::Generator& step_generator)
    ABSL_NO_THREAD_SAFETY_ANALYSIS : step_generator_(step_generator) {
  borrow_mutex().lock();
  at::Generator shared = at::detail::getDefaultCPUGenerator();
  saved_ = state_of(shared);
  set_state_of(shared, state_of(step_generator_));
}

BorrowDefaultGenerator::~BorrowDefaultGenerator() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  at::Generator shared = at::detail::getDefaultCPUGenerator();
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

}  // namespace internal
}  // namespace trireme
