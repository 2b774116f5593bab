#include "trireme/base/executor.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utility>

namespace trireme {

ThreadPool::ThreadPool(const std::string& name, int threads) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this, name] {
      set_thread_name(name);
      run();
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    ready_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::submit(Work work) {
  MutexLock lock(mutex_);
  queue_.push_back(std::move(work));
  ready_.notify_one();
}

void ThreadPool::run() {
  while (true) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) ready_.wait(mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

void set_thread_name(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

void lower_thread_priority(int niceness) {
  // On Linux, priorities belong to threads. Lowering one always succeeds.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), niceness);
}

}  // namespace trireme
