#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"
#include "trireme/base/clock.h"

namespace trireme {

// std::mutex with the annotations that clang's thread-safety analysis reads. Not absl::Mutex:
// ThreadSanitizer cannot see into the packaged build of it.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

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

// Many readers or one writer, who waits for those readers only that came before it:
// std::shared_mutex lets readers overtake, and where there always is one, nobody writes. For data
// whose readers hold it long: a lock that is held for a few instructions is cheaper as a Mutex.
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

  // How often it was locked for writing: who finds the same number later finds the same data. Asked
  // by those who hold it.
  uint64_t writes() const { return writes_; }

 private:
  std::mutex turn_;
  std::shared_mutex mutex_;
  uint64_t writes_ = 0;
};

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

class CondVar {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  // Only for threads whose work is to wait, such as a pool's; everyone else waits with a deadline.
  void wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  // False when the deadline has passed. May wake early: wait in a loop on a condition.
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
