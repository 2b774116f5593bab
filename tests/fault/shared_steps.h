#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

// The numbers of steps that the workers of a job have made, in a file that their processes and the
// test map into memory. A number stays when its process is killed. Thread-safe.
class SharedSteps {
 public:
  SharedSteps(const std::string& path, int workers) : workers_(workers) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, size()) != 0) fail(path);
    memory_ = mmap(nullptr, size(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory_ == MAP_FAILED) fail(path);
  }
  ~SharedSteps() { munmap(memory_, size()); }

  SharedSteps(const SharedSteps&) = delete;
  SharedSteps& operator=(const SharedSteps&) = delete;

  std::atomic<int64_t>& operator[](int worker) const {
    return static_cast<std::atomic<int64_t>*>(memory_)[worker];
  }
  // Returns the numbers of all workers, read one after the other.
  std::vector<int64_t> read() const {
    std::vector<int64_t> steps;
    for (int worker = 0; worker < workers_; ++worker) steps.push_back((*this)[worker]);
    return steps;
  }

 private:
  [[noreturn]] static void fail(const std::string& path) {
    throw Error(ErrorCode::kUnavailable, "cannot map '" + path + "'");
  }
  size_t size() const { return workers_ * sizeof(std::atomic<int64_t>); }

  const int workers_;
  void* memory_;
};

}  // namespace trireme
