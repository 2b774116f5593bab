// Switches stacks with the ucontext functions of the C library. Three parties have notes about the
// stack of a thread, and must hear of a switch:
//
// - The C++ library keeps the exceptions that are being handled for each thread. They are swapped,
//   so that a body can pause in a catch block.
// - AddressSanitizer knows the bounds of the stack, and moves variables to a fake stack. It is told
//   before a switch and after it. Between the two, no other instrumented function may run.
// - ThreadSanitizer keeps a list of the functions that a thread is in. It is told before a switch,
//   by the function that makes the switch itself: a function that it sees entered on one stack and
//   left on another would damage the list.
#include "trireme/function/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/sanitizer.h"

#if defined(TRIREME_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TRIREME_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace trireme::internal {
namespace {

// As large as the stack of a thread. The system provides the pages when they are first used.
constexpr size_t kFiberStack = 8 << 20;

// Unwinds the stack of a body that nobody will resume.
struct FiberCancelled {};

// The fiber that enter() begins.
thread_local Fiber* beginning = nullptr;

size_t guard_size() {
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  const size_t guard = guard_size();
  memory_ = mmap(nullptr, guard + kFiberStack, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory_ == MAP_FAILED || mprotect(memory_, guard, PROT_NONE) != 0) {
    const int error = errno;
    if (memory_ != MAP_FAILED) munmap(memory_, guard + kFiberStack);
    throw Error(ErrorCode::kResourceExhausted,
                absl::StrCat("there is no memory for the stack of a replica: ",
                             std::strerror(error), "; use fewer replicas or free memory"));
  }
  own_.bottom = static_cast<char*>(memory_) + guard;
  own_.size = kFiberStack;
  getcontext(&own_.registers);
  own_.registers.uc_stack.ss_sp = static_cast<char*>(memory_) + guard;
  own_.registers.uc_stack.ss_size = kFiberStack;
  makecontext(&own_.registers, &Fiber::enter, 0);
#if defined(TRIREME_TSAN)
  own_.thread_info = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  if (begun_ && !ended_) {
    cancelled_ = true;
    switch_stack(caller_, own_);
  }
#if defined(TRIREME_TSAN)
  __tsan_destroy_fiber(own_.thread_info);
#endif
#if defined(TRIREME_ASAN)
  // Frames that were never left are marked in the shadow of the memory, which others will use.
  ASAN_UNPOISON_MEMORY_REGION(own_.bottom, own_.size);
#endif
  munmap(memory_, guard_size() + kFiberStack);
}

void Fiber::resume() {
  if (!begun_) beginning = this;
  begun_ = true;
  switch_stack(caller_, own_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Fiber::pause() {
  if (!cancelled_) switch_stack(own_, caller_);
  if (cancelled_) throw FiberCancelled();
}

// Never returns, as there is nothing below it on its stack.
void Fiber::enter() noexcept {
  Fiber& fiber = *beginning;
#if defined(TRIREME_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &fiber.caller_.bottom, &fiber.caller_.size);
#endif
  fiber.run_body();
  fiber.switch_stack(fiber.own_, fiber.caller_);
  // Resumed after its end. To return would end the process without an error.
  std::abort();
}

void Fiber::run_body() noexcept {
  try {
    body_();
  } catch (...) {
    error_ = std::current_exception();
  }
  ended_ = true;
}

// Leaves the stack `from`, on which it is called, for `to`. Returns when `to` switches back.
void Fiber::switch_stack(Place& from, Place& to) {
  // The ABI of C++ defines it as a pointer and a number.
  void* const exceptions = abi::__cxa_get_globals();
  std::memcpy(from.exceptions.data(), exceptions, sizeof(from.exceptions));
  std::memcpy(exceptions, to.exceptions.data(), sizeof(to.exceptions));
#if defined(TRIREME_ASAN)
  // Frees the fake stack of a stack that is left for good.
  void** const fake_stack = ended_ ? nullptr : &from.fake_stack;
  __sanitizer_start_switch_fiber(fake_stack, to.bottom, to.size);
#endif
#if defined(TRIREME_TSAN)
  from.thread_info = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.thread_info, 0);
#endif
  swapcontext(&from.registers, &to.registers);
#if defined(TRIREME_ASAN)
  __sanitizer_finish_switch_fiber(from.fake_stack, &to.bottom, &to.size);
#endif
}

}  // namespace trireme::internal
