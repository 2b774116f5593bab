#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>

namespace trireme::internal {

// A device's random generator. As on a GPU its state is a seed and an offset. Each kernel takes the
// next offset when it is queued, so that its numbers do not depend on when it runs. Not
// thread-safe: callers hold mutex_, as with all generators.
class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(int device);

  // Returns a generator of the CPU for the next kernel.
  at::Generator for_next_kernel();

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& new_state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  DeviceGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;  // number of kernels that have drawn from it
};

// Returns the generator that kernels of the device use if none is given.
const at::Generator& default_device_generator(int device);

}  // namespace trireme::internal
