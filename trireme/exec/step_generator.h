#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

// The generators from which steps draw their random numbers.
namespace trireme::internal {

// Returns a new generator, seeded for a step.
at::Generator make_step_generator(uint64_t seed, uint64_t step);

// Returns a new generator of a device with this seed.
at::Generator make_device_generator(c10::Device device, uint64_t seed);

// Lets operators without a generator argument draw from a step's generator: for its lifetime, the
// default generator of its device continues the step's stream. The constructor blocks while another
// object of this class exists in the process.
class BorrowDefaultGenerator {
 public:
  explicit BorrowDefaultGenerator(at::Generator& step_generator);
  ~BorrowDefaultGenerator();

  BorrowDefaultGenerator(const BorrowDefaultGenerator&) = delete;
  BorrowDefaultGenerator& operator=(const BorrowDefaultGenerator&) = delete;

 private:
  at::Generator& step_generator_;
  at::Tensor saved_;  // state of the default generator before
};

// Detects code that seeds LibTorch's default generator during a capture. While at least one object
// exists, the default generator has a seed that no program would choose; its state is restored when
// the last object is destroyed.
class WatchDefaultGenerator {
 public:
  WatchDefaultGenerator();
  ~WatchDefaultGenerator();

  WatchDefaultGenerator(const WatchDefaultGenerator&) = delete;
  WatchDefaultGenerator& operator=(const WatchDefaultGenerator&) = delete;

  // Returns true if the default generator was seeded since the first object was made.
  bool was_seeded() const;
};

}  // namespace trireme::internal
