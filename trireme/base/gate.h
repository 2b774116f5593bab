#pragma once

#include <cstdint>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme {

// Counts the work that is under way and lets a stop wait for its end: work enters, a stop closes.
// After close() nobody enters. Together with std::stop_token this is how every module stops: the
// token asks work to end soon, the gate waits until it has. Thread-safe; outlives its passes.
class Gate {
 public:
  // Leaves the gate when destroyed. False when the gate was closed already.
  class [[nodiscard]] Pass {
   public:
    Pass() = default;
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept {
      std::swap(gate_, other.gate_);
      return *this;
    }
    ~Pass() {
      if (gate_ != nullptr) gate_->leave();
    }
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    Gate* gate_ = nullptr;
  };

  ~Gate();

  Pass enter();
  // Lets nobody in any more and waits for those inside. False when some are still inside at the
  // deadline; it can be called again to go on waiting.
  bool close(Time deadline);
  int64_t inside() const;

 private:
  void leave();

  mutable Mutex mutex_;
  CondVar empty_;
  int64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trireme
