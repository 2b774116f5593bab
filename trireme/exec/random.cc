#include "trireme/exec/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <mutex>

namespace trireme {
namespace {

std::atomic<uint64_t> program_seed = 0;

// SplitMix64's finalizer: neighbouring steps get unrelated seeds.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
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
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(step_seed(seed, step));
}

}  // namespace trireme
