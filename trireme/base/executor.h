#pragma once

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "trireme/base/mutex.h"

namespace trireme {

using Work = absl::AnyInvocable<void()>;

// Something that runs work later, or at once. Work must not throw. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(Work work) = 0;
};

// Runs work in place, on the thread that submits it.
class InlineExecutor final : public Executor {
 public:
  void submit(Work work) override { work(); }
};

// A fixed number of threads over one queue, first in, first out. The destructor runs what was
// submitted and then ends the threads.
class ThreadPool final : public Executor {
 public:
  // The name, cut to 15 letters, is what debuggers and `top -H` show.
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

// Names the calling thread.
void set_thread_name(const std::string& name);

}  // namespace trireme
