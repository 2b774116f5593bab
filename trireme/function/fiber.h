#pragma once

#include <ucontext.h>

#include <array>
#include <cstddef>
#include <exception>
#include <functional>

namespace trireme::internal {

// A body of code that runs on a stack of its own and can pause in the middle. It runs on the thread
// that resumes it, so code that keeps state for each thread sees one thread.
//
// Must be made, resumed and destroyed on one thread. Only one fiber of a thread runs at a time: a
// body must not resume another fiber.
class Fiber {
 public:
  // Makes a fiber that has not begun. Throws Error if there is no memory for its stack.
  explicit Fiber(std::function<void()> body);
  // Ends a paused body: pause() throws in it, so that the destructors of its objects run. The
  // exception is not derived from std::exception. Later exceptions of the body are dropped.
  ~Fiber();

  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it pauses or ends. Rethrows what it throws. Must not be called after that.
  void resume();
  // Returns true once the body has returned or thrown.
  bool ended() const { return ended_; }

  // Returns to the caller of resume(), until the next call of it. Must be called by the body.
  void pause();

 private:
  // A stack, and the place where its code goes on.
  struct Place {
    ucontext_t registers = {};
    // The exceptions that code on this stack handles. The C++ library has them for each thread.
    std::array<void*, 2> exceptions = {};
    const void* bottom = nullptr;
    size_t size = 0;
    void* fake_stack = nullptr;   // used by AddressSanitizer
    void* thread_info = nullptr;  // used by ThreadSanitizer
  };

  static void enter() noexcept;
  void run_body() noexcept;
  void switch_stack(Place& from, Place& to);

  const std::function<void()> body_;
  Place caller_;
  Place own_;
  void* memory_ = nullptr;  // the stack and its guard page
  bool begun_ = false;
  bool ended_ = false;
  bool cancelled_ = false;  // true once pause() must throw
  std::exception_ptr error_;
};

}  // namespace trireme::internal
