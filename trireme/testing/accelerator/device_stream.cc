#include "trireme/testing/accelerator/device_stream.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "trireme/base/executor.h"
#include "trireme/testing/accelerator/current_device.h"
#include "trireme/testing/accelerator/device_memory.h"

namespace trireme::internal {
namespace {

// Longest wait for a device, after which a test fails instead of hanging.
constexpr Duration kLongestWait = std::chrono::minutes(5);
constexpr int kPoolStreams = 4;

std::atomic<Duration::rep> g_kernel_delay = 0;

thread_local std::array<c10::StreamId, kMaxDevices> t_streams = {};

// The streams of one device: the default stream, and those of the pool. They start when needed.
struct DeviceStreams {
  Mutex mutex;
  std::array<std::unique_ptr<DeviceStream>, 1 + kPoolStreams> streams ABSL_GUARDED_BY(mutex);
  int from_pool ABSL_GUARDED_BY(mutex) = 0;  // streams ever taken from the pool
};

DeviceStreams& streams_of(int device) {
  // Never deleted, since tensors of static lifetime may be freed late.
  static auto* const all = new std::array<DeviceStreams, kMaxDevices>;
  return (*all)[device];
}

// Ends the threads before LibTorch's own static objects are destroyed.
struct StopStreamsAtExit {
  ~StopStreamsAtExit() {
    for (int device = 0; device < kMaxDevices; ++device) {
      DeviceStreams& all = streams_of(device);
      MutexLock lock(all.mutex);
      for (auto& stream : all.streams) stream.reset();
    }
  }
};

// Makes kernels run on the calling thread alone. at::set_num_threads() would change the default of
// threads that start later, too.
void use_one_thread() {
  at::get_num_threads();  // The first call in a thread sets the number, so it comes first.
  using SetThreads = void (*)(int);
  const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(1);
}

}  // namespace

void EventRecording::complete(Time time) {
  MutexLock lock(mutex_);
  complete_ = true;
  time_ = time;
  completed_.notify_all();
}

bool EventRecording::is_complete() const {
  MutexLock lock(mutex_);
  return complete_;
}

Time EventRecording::wait() const {
  const Time deadline = after(kLongestWait);
  MutexLock lock(mutex_);
  while (!complete_) {
    TORCH_CHECK(completed_.wait_until(mutex_, deadline) || complete_,
                "gpu: an event was not reached within five minutes");
  }
  return time_;
}

DeviceWork& device_work(int device) {
  static auto* const work = new std::array<DeviceWork, kMaxDevices>;
  return (*work)[device];
}

void set_kernel_delay(Duration delay) {
  g_kernel_delay = delay.count();
}

DeviceStream::DeviceStream(int device) : device_(device), thread_([this] { run(); }) {}

DeviceStream::~DeviceStream() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void DeviceStream::enqueue(std::function<void()> kernel, Blocks blocks) {
  push({.kernel = std::move(kernel), .blocks = std::move(blocks)});
}

std::shared_ptr<EventRecording> DeviceStream::record() {
  auto recording = std::make_shared<EventRecording>(device_);
  push({.completes = recording});
  return recording;
}

void DeviceStream::wait_for(std::shared_ptr<EventRecording> recording) {
  push({.waits_for = std::move(recording)});
}

void DeviceStream::push(Item item) {
  item.queued = Clock::real().now();
  MutexLock lock(mutex_);
  queue_.push_back(std::move(item));
  ++queued_;
  changed_.notify_all();
}

bool DeviceStream::is_idle() const {
  MutexLock lock(mutex_);
  return done_ == queued_;
}

void DeviceStream::synchronize() {
  ++device_work(device_).host_synchronizations;
  wait_until_idle();
}

void DeviceStream::wait_until_idle() {
  const Time deadline = after(kLongestWait);
  std::exception_ptr error;
  {
    MutexLock lock(mutex_);
    const int64_t target = queued_;
    while (done_ < target) {
      TORCH_CHECK(changed_.wait_until(mutex_, deadline) || done_ >= target, "gpu:", device_,
                  ": a stream has not run its kernels within five minutes");
    }
    error = std::exchange(error_, nullptr);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void DeviceStream::run() {
  set_thread_name("gpu:" + std::to_string(device_));
  open_device_memory_to_thread(device_);
  use_one_thread();
  exchange_current_device(device_);
  for (;;) {
    Item item;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      perform(item);
    } catch (...) {
      error = std::current_exception();
    }
    item = {};  // A host that waits for the kernel finds its memory freed.
    MutexLock lock(mutex_);
    if (error_ == nullptr) error_ = error;
    ++done_;
    changed_.notify_all();
  }
}

void DeviceStream::perform(const Item& item) {
  if (item.completes != nullptr) {
    device_time_ = std::max(device_time_, item.queued);
    item.completes->complete(device_time_);
  } else if (item.waits_for != nullptr) {
    device_time_ = std::max(device_time_, item.waits_for->wait());
  } else {
    run_kernel(item);
  }
}

void DeviceStream::run_kernel(const Item& item) {
  const Time start = std::max(device_time_, item.queued);
  const Duration delay(g_kernel_delay);
  // The kernel writes at the end of its time, so that a reader that does not wait for it is found.
  if (delay > Duration::zero()) std::this_thread::sleep_until(start + delay);
  const Time began = Clock::real().now();
  std::exception_ptr error;
  for (const auto& block : item.blocks) block->open();
  try {
    item.kernel();
  } catch (...) {
    error = std::current_exception();
  }
  for (const auto& block : item.blocks) block->close();
  const Duration duration = std::max(delay, Clock::real().now() - began);
  device_time_ = start + duration;
  DeviceWork& work = device_work(device_);
  ++work.kernels;
  work.busy += duration.count();
  if (error != nullptr) std::rethrow_exception(error);
}

DeviceStream& stream_of(int device, c10::StreamId id) {
  static const StopStreamsAtExit at_exit;
  DeviceStreams& all = streams_of(device);
  MutexLock lock(all.mutex);
  auto& stream = all.streams.at(id);
  if (stream == nullptr) stream = std::make_unique<DeviceStream>(device);
  return *stream;
}

c10::StreamId stream_from_pool(int device) {
  DeviceStreams& all = streams_of(device);
  MutexLock lock(all.mutex);
  return 1 + all.from_pool++ % kPoolStreams;
}

c10::StreamId current_stream_id(int device) {
  return t_streams.at(device);
}

c10::StreamId exchange_current_stream(int device, c10::StreamId id) {
  return std::exchange(t_streams.at(device), id);
}

DeviceStream& current_stream(int device) {
  return stream_of(device, current_stream_id(device));
}

void synchronize_device(int device) {
  std::vector<DeviceStream*> started;
  {
    DeviceStreams& all = streams_of(device);
    MutexLock lock(all.mutex);
    for (const auto& stream : all.streams) {
      if (stream != nullptr) started.push_back(stream.get());
    }
  }
  ++device_work(device).host_synchronizations;
  std::exception_ptr error;
  for (DeviceStream* stream : started) {
    try {
      stream->wait_until_idle();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace trireme::internal
