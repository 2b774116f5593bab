#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <vector>

namespace trireme::internal {

// Makes a stream the current one of its device, for the calling thread. The destructor restores the
// stream before; it must run on the same thread.
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

// Returns the current stream of each accelerator for the calling thread; none without accelerators.
std::vector<c10::Stream> current_streams();

// Makes several streams, each of another device, the current ones as UseStream does.
class UseStreams {
 public:
  explicit UseStreams(const std::vector<c10::Stream>& streams) {
    for (const c10::Stream& stream : streams) used_.emplace_back(stream);
  }

 private:
  std::deque<UseStream> used_;
};

}  // namespace trireme::internal
