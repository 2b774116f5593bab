#include "trireme/testing/accelerator/device_guard.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>

#include "trireme/testing/accelerator/current_device.h"
#include "trireme/testing/accelerator/device_generator.h"
#include "trireme/testing/accelerator/device_memory.h"
#include "trireme/testing/accelerator/device_operators.h"
#include "trireme/testing/accelerator/device_stream.h"

namespace trireme::internal {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<DeviceIndex>(index)};
}

Stream stream_at(Device device, c10::StreamId id) {
  return Stream(Stream::UNSAFE, device, id);
}

int index_or_current(Device device) {
  return device.has_index() ? device.index() : current_device();
}

DeviceStream& queue_of(const Stream& stream) {
  return stream_of(stream.device_index(), stream.id());
}

// An event of LibTorch is a pointer to its latest recording.
using EventPointer = std::shared_ptr<EventRecording>;

class StandInGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(device_count());
  }

  Device getDevice() const override { return device_at(current_device()); }
  Device exchangeDevice(Device device) const override {
    return device_at(exchange_current_device(device.index()));
  }
  void setDevice(Device device) const override { exchange_current_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() < device_count()) exchange_current_device(device.index());
  }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }

  Stream getStream(Device device) const override {
    const Device full = device_at(index_or_current(device));
    return stream_at(full, current_stream_id(full.index()));
  }
  Stream getDefaultStream(Device device) const override {
    return stream_at(device_at(index_or_current(device)), 0);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(Device device, int) const override {
    const Device full = device_at(index_or_current(device));
    return stream_at(full, stream_from_pool(full.index()));
  }
  Stream exchangeStream(Stream stream) const override {
    return stream_at(stream.device(), exchange_current_stream(stream.device_index(), stream.id()));
  }
  bool queryStream(const Stream& stream) const override { return queue_of(stream).is_idle(); }
  void synchronizeStream(const Stream& stream) const override { queue_of(stream).synchronize(); }
  void synchronizeDevice(DeviceIndex device) const override {
    synchronize_device(index_or_current(device_at(device)));
  }

  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventPointer;
    *static_cast<EventPointer*>(*event) = queue_of(stream).record();
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) queue_of(stream).wait_for(*static_cast<EventPointer*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || (*static_cast<EventPointer*>(event))->is_complete();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const EventRecording& recording = **static_cast<EventPointer*>(event);
    ++device_work(recording.device()).host_synchronizations;
    recording.wait();
  }
  double elapsedTime(void* begin, void* end, DeviceIndex) const override {
    const auto time = [](void* event) { return (*static_cast<EventPointer*>(event))->wait(); };
    return std::chrono::duration<double, std::milli>(time(end) - time(begin)).count();
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<EventPointer*>(event);
  }
};

class StandInHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex device) const override { return device < device_count(); }

  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(current_device());
  }
  void setCurrentDevice(DeviceIndex device) const override { exchange_current_device(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return static_cast<DeviceIndex>(exchange_current_device(device));
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_device_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device < 0 ? current_device() : device);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned_memory(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    grow_device_storage(storage, bytes);
  }
};

}  // namespace

void register_device_guard() {
  c10::register_privateuse1_backend("gpu");
  // LibTorch keeps these for the life of the process.
  c10::impl::registerDeviceGuard(c10::kPrivateUse1, new StandInGuard);
  at::RegisterPrivateUse1HooksInterface(new StandInHooks);
  c10::SetAllocator(c10::kPrivateUse1, &device_allocator());
  at::globalContext().lazyInitDevice(c10::kPrivateUse1);
}

}  // namespace trireme::internal
