#pragma once

#include <cstdint>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/mutex.h"

namespace trireme {

// Counts the operations in progress, so that a shutdown can wait for them. Each operation calls
// enter() and holds the pass until it is done; the shutdown calls close(), after which enter()
// fails. Every module stops in the same way: a std::stop_token asks operations to end soon, and a
// gate waits until they have ended. Thread-safe. Must outlive its passes.
//
//   Gate::Pass pass = gate.enter();
//   if (!pass) return absl::CancelledError("stopping");
class Gate {
 public:
  // Proof of being inside the gate; leaves it when destroyed. Converts to false if the gate was
  // already closed.
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
  // Closes the gate and waits until all passes are released. Returns false if some are still held
  // at the deadline. May be called again to continue waiting.
  bool close(Time deadline);
  // Returns the number of passes that are held.
  int64_t inside() const;

 private:
  void leave();

  mutable Mutex mutex_;
  CondVar empty_;
  int64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace trireme
