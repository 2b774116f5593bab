#pragma once

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "trireme/base/mutex.h"

namespace trireme {

using Work = absl::AnyInvocable<void()>;

// Runs work, at once or later, possibly on another thread. Work must not throw. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(Work work) = 0;
};

// Runs work inside submit(), on the calling thread.
class InlineExecutor final : public Executor {
 public:
  void submit(Work work) override { work(); }
};

// Runs work on a fixed number of threads that share one first-in, first-out queue. The destructor
// runs all submitted work and then joins the threads. Thread-safe.
class ThreadPool final : public Executor {
 public:
  // Starts the threads. Debuggers and `top -H` show `name`, truncated to 15 characters.
  ThreadPool(const std::string& name, int threads);
  ~ThreadPool() override;

  void submit(Work work) override;
  int threads() const { return static_cast<int>(threads_.size()); }

 private:
  void run();

  Mutex mutex_;
  CondVar ready_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Sets the name of the calling thread, truncated to 15 characters.
void set_thread_name(const std::string& name);

// Lowers the priority of the calling thread, so that threads that serve calls go first when all
// cores are busy: to a niceness between the usual 0 and 19, which has the least time. The thread
// keeps the low priority until it ends.
void lower_thread_priority(int niceness);

}  // namespace trireme
