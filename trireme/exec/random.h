#pragma once

#include <cstdint>

// Random numbers in captured functions. Each step (one call of a function) has its own generator,
// seeded from the program's seed and the step's number, and random operators draw from it in
// captured order. So a step that is repeated, or that runs on another task, draws the same numbers.
//
//   tr::set_seed(42);                    // before the first step; every run draws the same
//
// To compare a captured step with the same code run eagerly, seed LibTorch's default generator
// before the eager code:
//
//   tr::seed_step(tr::current_seed(), n);     // draws what step n of a function draws
namespace trireme {

// Sets the seed that functions use unless their options name one. The default is 0. Thread-safe.
void set_seed(uint64_t seed);
// Returns the seed that set_seed() has set.
uint64_t current_seed();

// Returns the seed of the generator of step number `step` under the seed `seed`.
uint64_t step_seed(uint64_t seed, uint64_t step);

// Seeds LibTorch's default generator with step_seed(seed, step), so that eager code draws the
// numbers that the captured step draws.
void seed_step(uint64_t seed, uint64_t step);

}  // namespace trireme
