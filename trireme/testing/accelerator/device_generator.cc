#include "trireme/testing/accelerator/device_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>

#include "trireme/testing/accelerator/current_device.h"

namespace trireme::internal {
namespace {

using GeneratorState = std::array<uint64_t, 2>;  // seed and offset

// Mixes the bits of seed and offset (the finalizer of SplitMix64).
uint64_t kernel_seed(uint64_t seed, uint64_t offset) {
  uint64_t mixed = seed + (offset + 1) * 0x9e3779b97f4a7c15;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

}  // namespace

DeviceGenerator::DeviceGenerator(int device)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

at::Generator DeviceGenerator::for_next_kernel() {
  return at::detail::createCPUGenerator(kernel_seed(seed_, offset_++));
}

void DeviceGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t DeviceGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void DeviceGenerator::set_state(const c10::TensorImpl& new_state) {
  TORCH_CHECK(new_state.numel() == sizeof(GeneratorState) && new_state.itemsize() == 1,
              "gpu: a generator's state has ", sizeof(GeneratorState), " bytes");
  GeneratorState state;
  std::memcpy(state.data(), new_state.data(), sizeof(state));
  seed_ = state[0];
  offset_ = state[1];
}

c10::intrusive_ptr<c10::TensorImpl> DeviceGenerator::get_state() const {
  const GeneratorState state = {seed_, offset_};
  const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(state))}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), state.data(), sizeof(state));
  return bytes.getIntrusivePtr();
}

DeviceGenerator* DeviceGenerator::clone_impl() const {
  auto* const copy = new DeviceGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_device_generator(int device) {
  static const auto* const generators = [] {
    auto* const all = new std::array<at::Generator, kMaxDevices>;
    for (int i = 0; i < kMaxDevices; ++i) (*all)[i] = at::make_generator<DeviceGenerator>(i);
    return all;
  }();
  return generators->at(device < 0 ? current_device() : device);
}

}  // namespace trireme::internal
