#include "trireme/rpc/retrying_call.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {

namespace {

// Payload of a status that marks it as the server's own answer (as_answer).
constexpr char kAnswerUrl[] = "trireme/answer";

}  // namespace

absl::Status as_answer(absl::Status status) {
  status.SetPayload(kAnswerUrl, absl::Cord());
  return status;
}

bool is_retryable(const absl::Status& status) {
  switch (error_code(status)) {
    case ErrorCode::kUnavailable:
      return true;
    case ErrorCode::kTaskUnreachable:
    case ErrorCode::kDeadlineExceeded:
      return !status.GetPayload(kAnswerUrl).has_value();
    default:
      return false;
  }
}

namespace {

// A call and its attempts, of which one is in flight at a time. The callbacks of the attempt and of
// the timer between two attempts own it, so it needs no lock.
class RetryingCall : public std::enable_shared_from_this<RetryingCall> {
 public:
  RetryingCall(const CallOptions& options, Attempt attempt, OnResponse on_response)
      : options_(options), attempt_(std::move(attempt)), on_response_(std::move(on_response)) {}

  void start() {
    ++attempts_;
    attempt_(after(options_.retry->attempt_time), [self = shared_from_this()](Response response) {
      self->on_attempt(std::move(response));
    });
  }

 private:
  void on_attempt(Response response) {
    if (response.ok() || !is_retryable(response.status())) return on_response_(std::move(response));
    const Time next = after(options_.retry->delay_before(attempts_ + 1));
    if (options_.stop.stop_requested() || next >= options_.deadline ||
        unreachable_too_long(response)) {
      absl::Status last = response.status();
      return on_response_(make_status(
          error_code(last),
          absl::StrCat(std::string(last.message()), " (after ", attempts_, " attempts)"),
          error_origin(last)));
    }
    run_at(next, [self = shared_from_this()] { self->start(); });
  }

  // Returns true if all attempts of the last unreachable_time found the server unreachable.
  bool unreachable_too_long(const Response& response) {
    if (error_code(response.status()) != ErrorCode::kTaskUnreachable) {
      unreachable_since_.reset();
      return false;
    }
    const Duration patience = options_.retry->unreachable_time;
    const Time now = Clock::real().now();
    if (!unreachable_since_) unreachable_since_ = now;
    return patience > Duration::zero() && now - *unreachable_since_ >= patience;
  }

  const CallOptions options_;
  const Attempt attempt_;
  OnResponse on_response_;
  int attempts_ = 0;
  std::optional<Time> unreachable_since_;  // time of the first unreachable attempt in a row
};

}  // namespace

void call_with_retries(const CallOptions& options, Attempt attempt, OnResponse on_response) {
  std::make_shared<RetryingCall>(options, std::move(attempt), std::move(on_response))->start();
}

}  // namespace trireme::internal
