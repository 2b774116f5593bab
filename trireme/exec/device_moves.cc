#include "trireme/exec/device_moves.h"

#include <ATen/ops/record_stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

#include "trireme/base/mutex.h"
#include "trireme/exec/current_streams.h"

namespace trireme::internal {
namespace {

// Returns the stream of a device on which moves from it and to it are queued.
c10::Stream move_stream(c10::Device device) {
  struct Streams {
    Mutex mutex;
    std::map<c10::DeviceIndex, c10::Stream> by_device ABSL_GUARDED_BY(mutex);
  };
  static auto& streams = *new Streams;  // Never destroyed: threads may still run at the end.
  MutexLock lock(streams.mutex);
  const auto known = streams.by_device.find(device.index());
  if (known != streams.by_device.end()) return known->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams.by_device.emplace(device.index(), guard.getStreamFromGlobalPool(device))
      .first->second;
}

}  // namespace

DeviceMoves::DeviceMoves(const Plan& plan)
    : storages_(plan.storages), changes_(plan.storages.size()), arrivals_(plan.storages.size()) {
  const auto note = [this](int64_t value) {
    if (value >= 0) changes_[storages_[value]] = true;
  };
  // The next step may write to a variable before this step has moved it.
  for (int64_t value : plan.variable_values) note(value);
  for (const NodePlan& node : plan.nodes) {
    for (int i : node.rules.written) {
      if (node.arguments[i].kind == ArgumentPlan::Kind::kValue) note(node.arguments[i].value);
      for (int64_t value : node.arguments[i].values) note(value);
    }
  }
}

// The allocator of an accelerator gives memory back to the stream that it was allocated on. It is
// told about the other streams that use it.
void DeviceMoves::move(uint32_t from, uint32_t to, const at::Tensor& tensor, c10::Device device,
                       const std::function<at::Tensor()>& copy) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream makes = guard.getStream(tensor.device()), computes = guard.getStream(device);
  const c10::Stream leaves = move_stream(tensor.device()), arrives = move_stream(device);
  c10::Event made(device.type());
  made.record(makes);
  made.block(leaves);
  auto arrival = std::make_unique<c10::Event>(device.type());
  at::Tensor moved;
  {
    const UseStream source(leaves), target(arrives);
    moved = copy();
    arrival->record(arrives);
  }
  at::Tensor(tensor).record_stream(leaves);
  moved.record_stream(computes);
  if (changes_[storages_[from]]) arrival->block(makes);
  arrivals_[to] = std::move(arrival);
}

void DeviceMoves::await(uint32_t value, const at::Tensor& moved) {
  if (arrivals_[value] == nullptr) return;
  const c10::impl::VirtualGuardImpl guard(moved.device().type());
  arrivals_[value]->block(guard.getStream(moved.device()));
}

}  // namespace trireme::internal
