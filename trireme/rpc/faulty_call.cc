#include "trireme/rpc/faulty_call.h"

#include <atomic>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

// One call with its faults. A duplicated request is sent twice; the first answer is the call's.
//
//   start -> (hold until the next call, if reordered) -> after_delay -> transmit -> send_once
//
// Callbacks and timers own the object.
class FaultyCall : public std::enable_shared_from_this<FaultyCall> {
 public:
  FaultyCall(std::shared_ptr<FaultInjector> injector, const Fault& fault, Time deadline, Send send,
             OnResponse on_response)
      : injector_(std::move(injector)),
        fault_(fault),
        deadline_(deadline),
        send_(std::move(send)),
        on_response_(std::move(on_response)) {}

  void start() {
    // The caller notices a loss only by its deadline.
    if (fault_.lose_request || fault_.lose_response) {
      run_at(deadline_, [self = shared_from_this()] {
        self->answer(make_status(ErrorCode::kDeadlineExceeded,
                                 "no answer before the deadline (an injected loss)"));
      });
    }
    if (fault_.lose_request) return injector_->passed();
    if (fault_.reorder) {
      injector_->hold([self = shared_from_this()] { self->after_delay(); }, kLongestHold);
    } else {
      after_delay();
      injector_->passed();
    }
  }

 private:
  // Longest time for which a reordered call is held if no other call follows.
  static constexpr auto kLongestHold = std::chrono::milliseconds(50);

  void after_delay() {
    if (fault_.delay == Duration::zero()) return transmit();
    run_at(after(fault_.delay), [self = shared_from_this()] { self->transmit(); });
  }

  void transmit() {
    if (fault_.duplicate) {
      run_at(after(fault_.duplicate_delay), [self = shared_from_this()] { self->send_once(); });
    }
    send_once();
  }

  void send_once() {
    if (fault_.cut) {
      run_at(after(fault_.cut_after), [self = shared_from_this()] { self->cut_.request_stop(); });
    }
    send_(cut_.get_token(), [self = shared_from_this()](Response response) {
      if (self->fault_.lose_response) return;
      if (self->fault_.cut && !response.ok() &&
          error_code(response.status()) == ErrorCode::kCancelled) {
        response = make_status(ErrorCode::kTaskUnreachable, "the stream broke (an injected cut)");
      }
      self->answer(std::move(response));
    });
  }

  void answer(Response response) {
    if (!answered_.exchange(true)) on_response_(std::move(response));
  }

  const std::shared_ptr<FaultInjector> injector_;
  const Fault fault_;
  const Time deadline_;
  const Send send_;
  OnResponse on_response_;
  std::stop_source cut_;
  std::atomic<bool> answered_ = false;
};

}  // namespace

void send_with_fault(const std::shared_ptr<FaultInjector>& injector, const Fault& fault,
                     Time deadline, Send send, OnResponse on_response) {
  std::make_shared<FaultyCall>(injector, fault, deadline, std::move(send), std::move(on_response))
      ->start();
}

}  // namespace trireme::internal
