#include "trireme/exec/device_moves.h"

#include <ATen/ops/record_stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

#include "trireme/base/mutex.h"

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

// Makes a stream the current one of its device, for the calling thread.
class UseStream {
 public:
  explicit UseStream(c10::Stream stream)
      : guard_(stream.device_type()), before_(guard_.exchangeStream(stream)) {}
  ~UseStream() { guard_.exchangeStream(before_); }

  UseStream(const UseStream&) = delete;
  UseStream& operator=(const UseStream&) = delete;

 private:
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream before_;
};

}  // namespace

// The allocator of an accelerator gives memory back to the stream that it was allocated on. It is
// told about the other streams that use it.
at::Tensor DeviceMoves::move(uint32_t value, const at::Tensor& tensor, c10::Device to,
                             const std::function<at::Tensor()>& copy) {
  const c10::impl::VirtualGuardImpl guard(to.type());
  const c10::Stream computes = guard.getStream(to);
  const c10::Stream leaves = move_stream(tensor.device()), arrives = move_stream(to);
  c10::Event made(to.type());
  made.record(guard.getStream(tensor.device()));
  made.block(leaves);
  auto arrival = std::make_unique<c10::Event>(to.type());
  at::Tensor moved;
  {
    const UseStream source(leaves), target(arrives);
    moved = copy();
    arrival->record(arrives);
  }
  at::Tensor(tensor).record_stream(leaves);
  moved.record_stream(computes);
  arrivals_[value] = std::move(arrival);
  return moved;
}

void DeviceMoves::await(uint32_t value, const at::Tensor& moved) {
  if (arrivals_[value] == nullptr) return;
  const c10::impl::VirtualGuardImpl guard(moved.device().type());
  arrivals_[value]->block(guard.getStream(moved.device()));
}

}  // namespace trireme::internal
