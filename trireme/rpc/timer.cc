#include "trireme/rpc/timer.h"

#include <map>
#include <thread>
#include <utility>

#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

// A thread of its own, and not gRPC's alarms: those need a completion queue that somebody polls,
// and each thread that polls one delays what arrives for the others of the process.
class TimerThread {
 public:
  TimerThread()
      : thread_([this] {
          set_thread_name("trireme-timer");
          run();
        }) {}

  void add(Time time, Work work) {
    MutexLock lock(mutex_);
    const bool first = queue_.empty() || time < queue_.begin()->first;
    queue_.emplace(time, std::move(work));
    if (first) changed_.notify_one();
  }

 private:
  void run() {
    while (true) {
      Work work;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() || queue_.begin()->first > Clock::real().now()) {
          queue_.empty() ? changed_.wait(mutex_)
                         : (void)changed_.wait_until(mutex_, queue_.begin()->first);
        }
        work = std::move(queue_.begin()->second);
        queue_.erase(queue_.begin());
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::multimap<Time, Work> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses the others
};

}  // namespace

void run_at(Time time, Work work) {
  // Never destroyed: work may be due while the process ends.
  static auto* timer = new TimerThread;
  timer->add(time, std::move(work));
}

}  // namespace trireme::internal
