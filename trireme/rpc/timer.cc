#include "trireme/rpc/timer.h"

#include <map>
#include <thread>
#include <utility>

#include "trireme/base/mutex.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/call_and_wait.h"

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
  std::thread thread_;  // declared last, because it uses the other members
};

}  // namespace

void run_at(Time time, Work work) {
  // Never destroyed, because work may be due while the process exits.
  static auto* timer = new TimerThread;
  timer->add(time, std::move(work));
}

void block_until(Time time) {
  call_and_wait<bool>([time](auto done) { run_at(time, [done] { done(true); }); });
}

}  // namespace trireme::internal
