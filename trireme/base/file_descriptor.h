#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace trireme {

// Owns a file descriptor, or none, and closes it at the end.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() { close_now(); }

  // Returns the descriptor; -1 if there is none.
  int get() const { return number_; }
  bool valid() const { return number_ >= 0; }
  // Returns the descriptor, which the caller then owns.
  int release() { return std::exchange(number_, -1); }
  // Closes the descriptor and returns errno, or 0.
  int close_now() {
    if (number_ < 0) return 0;
    return ::close(release()) == 0 ? 0 : errno;
  }

 private:
  int number_ = -1;
};

}  // namespace trireme
