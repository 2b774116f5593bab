#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

// Randomness in steps. Each step has one generator, seeded from the program's seed and the step's
// number, and random operators draw from it in the captured order. So a step that runs again, or
// elsewhere, draws the same numbers.
namespace trireme {

// The seed that functions use unless their options name one; 0 at the start of a program.
void set_seed(uint64_t seed);
uint64_t current_seed();

// The seed of one step's generator.
uint64_t step_seed(uint64_t seed, uint64_t step);

// Seeds LibTorch's default generator as the step's generator is seeded, so that eager code draws
// what the captured step draws.
void seed_step(uint64_t seed, uint64_t step);

namespace internal {

at::Generator make_step_generator(uint64_t seed, uint64_t step);

// Lets operators without a generator argument draw from a step's generator: for its lifetime the
// default generator continues the step's stream. One at a time in a process.
class BorrowDefaultGenerator {
 public:
  explicit BorrowDefaultGenerator(at::Generator& step_generator);
  ~BorrowDefaultGenerator();

  BorrowDefaultGenerator(const BorrowDefaultGenerator&) = delete;
  BorrowDefaultGenerator& operator=(const BorrowDefaultGenerator&) = delete;

 private:
  at::Generator& step_generator_;
  at::Tensor saved_;
};

// While some capture is under way the default generator has a seed that nobody chooses, so that a
// step that seeds it shows. It gets its state back when the last capture ends.
class WatchDefaultGenerator {
 public:
  WatchDefaultGenerator();
  ~WatchDefaultGenerator();

  WatchDefaultGenerator(const WatchDefaultGenerator&) = delete;
  WatchDefaultGenerator& operator=(const WatchDefaultGenerator&) = delete;

  bool was_seeded() const;
};

}  // namespace internal
}  // namespace trireme
