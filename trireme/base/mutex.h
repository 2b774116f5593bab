#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"
#include "trireme/base/clock.h"

namespace trireme {

// A std::mutex with the annotations that clang's thread-safety analysis reads. absl::Mutex is not
// used because ThreadSanitizer cannot see into the distribution's build of it.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for the duration of a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A lock for many readers or one writer. A writer waits only for the readers that came before it.
// A plain std::shared_mutex lets readers overtake, so that a steady stream of readers starves the
// writers. Use it for data that readers hold for long; for a few instructions a Mutex is cheaper.
class ABSL_LOCKABLE SharedMutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    std::lock_guard<std::mutex> turn(turn_);
    mutex_.lock();
    ++writes_;
  }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void lock_shared() ABSL_SHARED_LOCK_FUNCTION() {
    std::lock_guard<std::mutex> turn(turn_);
    mutex_.lock_shared();
  }
  void unlock_shared() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

  // Returns the number of times that it was locked for writing. A reader that finds the same number
  // again finds the same data. The caller must hold the lock.
  uint64_t writes() const { return writes_; }
  // Takes back the count of the present lock for writing. The holder calls it, at most once, if it
  // has changed nothing.
  void uncount_write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) { --writes_; }

 private:
  std::mutex turn_;  // Held while waiting for mutex_, so that nobody overtakes a waiting writer.
  std::shared_mutex mutex_;
  uint64_t writes_ = 0;
};

// Holds a SharedMutex for writing for the duration of a scope.
class ABSL_SCOPED_LOCKABLE WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~WriterLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// Holds a SharedMutex for reading for the duration of a scope.
class ABSL_SCOPED_LOCKABLE ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ABSL_SHARED_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~ReaderLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// A condition variable for Mutex.
class CondVar {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  // Waits without a deadline. Only for threads that exist to wait, such as those of a pool;
  // all other code waits with a deadline.
  void wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // Returns false if the deadline has passed. May wake spuriously, so call it in a loop that checks
  // the condition.
  bool wait_until(Mutex& mutex, Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace trireme
