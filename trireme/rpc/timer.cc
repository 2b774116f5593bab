#include "trireme/rpc/timer.h"

#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "trireme/base/mutex.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/process_end.h"

namespace trireme::internal {
namespace {

// Runs work at given times, on one thread. gRPC's alarms are not used: they need a completion queue
// that some thread polls, and each polling thread delays what arrives for the others.
class TimerThread {
 public:
  TimerThread()
      : thread_([this] {
          set_thread_name("trireme-timer");
          declare_serving_thread();
          run();
        }) {}

  void add(Time time, Work work) {
    MutexLock lock(mutex_);
    if (ends_) return;
    const bool first = queue_.empty() || time < queue_.begin()->first;
    queue_.emplace(time, std::move(work));
    if (first) changed_.notify_one();
  }

  // Runs all work at once, and ends the thread.
  void end() {
    if (thread_.get_id() == std::this_thread::get_id()) return;  // work ends the process
    {
      MutexLock lock(mutex_);
      ends_ = true;
      changed_.notify_one();
    }
    await_thread_end(thread_);
  }

 private:
  void run() {
    while (true) {
      Work work;
      {
        MutexLock lock(mutex_);
        while (!ends_ && (queue_.empty() || queue_.begin()->first > Clock::real().now())) {
          queue_.empty() ? changed_.wait(mutex_)
                         : (void)changed_.wait_until(mutex_, queue_.begin()->first);
        }
        if (queue_.empty()) return;
        work = std::move(queue_.begin()->second);
        queue_.erase(queue_.begin());
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::multimap<Time, Work> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // declared last, because it uses the other members
};

// Returns the thread of the process. It is never destroyed.
TimerThread& timer() {
  static TimerThread* timer = nullptr;
  static std::once_flag once;
  std::call_once(once, [] {
    timer = new TimerThread;
    at_process_end(EndStep::kTimers, [] { timer->end(); });
  });
  return *timer;
}

}  // namespace

void run_at(Time time, Work work) {
  timer().add(time, std::move(work));
}

void block_until(Time time) {
  std::this_thread::sleep_until(time);
}

}  // namespace trireme::internal
