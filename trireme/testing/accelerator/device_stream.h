#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

// The streams and events of the stand-in accelerator, and each thread's current stream.
namespace trireme::internal {

class DeviceBlock;

// One recording of an event: a point in a stream's queue. Thread-safe.
class EventRecording {
 public:
  explicit EventRecording(int device) : device_(device) {}

  int device() const { return device_; }
  // Marks the point as reached, at `time` of the device.
  void complete(Time time);
  bool is_complete() const;
  // Blocks until the point is reached and returns its time.
  Time wait() const;

 private:
  const int device_;
  mutable Mutex mutex_;
  mutable CondVar completed_;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  Time time_ ABSL_GUARDED_BY(mutex_);
};

// Counters of a device's streams.
struct DeviceWork {
  std::atomic<int64_t> kernels = 0;
  std::atomic<int64_t> host_synchronizations = 0;
  std::atomic<Duration::rep> busy = 0;
};
DeviceWork& device_work(int device);

// The least duration of a kernel.
void set_kernel_delay(Duration delay);

// Runs kernels one after the other on its own thread. Thread-safe. The destructor runs what is
// queued and joins the thread.
class DeviceStream {
 public:
  explicit DeviceStream(int device);
  ~DeviceStream();

  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  using Blocks = std::vector<std::shared_ptr<DeviceBlock>>;
  // Queues a kernel, which accesses the memory in `blocks`.
  void enqueue(std::function<void()> kernel, Blocks blocks);
  // Queues the completion of the returned recording.
  std::shared_ptr<EventRecording> record();
  // Makes kernels that are queued later wait for the recording.
  void wait_for(std::shared_ptr<EventRecording> recording);

  // Returns true if nothing is queued or running.
  bool is_idle() const;
  // Block until all that was queued before has run, and throw the first error of a kernel since the
  // last call. synchronize() counts as a synchronization of the host.
  void synchronize();
  void wait_until_idle();

 private:
  // Exactly one of the three is set.
  struct Item {
    std::function<void()> kernel;
    std::shared_ptr<EventRecording> completes;
    std::shared_ptr<EventRecording> waits_for;
    Blocks blocks;  // memory that the kernel uses
    Time queued;
  };

  void push(Item item);
  void run();
  void perform(const Item& item);
  void run_kernel(const Item& item);

  const int device_;
  // Time at which the last item ended. Kernels that were queued before it start at this time, not
  // when the thread wakes up, so that the delays of wake-ups do not add up.
  Time device_time_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;  // items ever queued
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;    // items ever completed
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Returns the stream that has the id, which is 0 for the default stream. Starts its thread if this
// is its first use.
DeviceStream& stream_of(int device, c10::StreamId id);
// Returns a stream of the device's pool. After a few they repeat.
c10::StreamId stream_from_pool(int device);

// The current stream of the calling thread on a device.
c10::StreamId current_stream_id(int device);
c10::StreamId exchange_current_stream(int device, c10::StreamId id);
DeviceStream& current_stream(int device);

// Blocks until all streams of the device have run what was queued. Throws as
// DeviceStream::synchronize() does. Counts as one synchronization of the host.
void synchronize_device(int device);

}  // namespace trireme::internal
