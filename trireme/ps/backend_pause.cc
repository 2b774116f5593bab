#include "trireme/ps/backend_pause.h"

#include <chrono>
#include <future>
#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/clock.h"
#include "trireme/base/status.h"

namespace trireme::internal {

void StepGate::enter() {
  MutexLock lock(mutex_);
  while (closed_) changed_.wait_until(mutex_, after(std::chrono::hours(1)));
  ++steps_;
}

void StepGate::leave() {
  MutexLock lock(mutex_);
  if (--steps_ == 0 && closed_) changed_.notify_all();
}

bool StepGate::close(Time limit) {
  MutexLock lock(mutex_);
  while (closed_) {
    if (!changed_.wait_until(mutex_, limit) && closed_) return false;
  }
  closed_ = true;
  while (steps_ > 0) {
    if (changed_.wait_until(mutex_, limit) || steps_ == 0) continue;
    closed_ = false;
    changed_.notify_all();
    return false;
  }
  return true;
}

void StepGate::open() {
  MutexLock lock(mutex_);
  closed_ = false;
  changed_.notify_all();
}

std::vector<PausedWriter> BackendPause::fences() const {
  std::vector<PausedWriter> fences = writers_;
  for (const auto& pause : pauses_) fences.push_back(pause->writer());
  return fences;
}

absl::Status confirm_writer_fence(JobMembership& membership, const PausedWriter& writer,
                                  Time limit) {
  // Renewals of the lease carry the fence too.
  const size_t servers = membership.raise_fence(writer.writer, writer.below).size();
  std::vector<std::future<absl::Status>> answers;
  for (size_t i = 0; i < servers; ++i) {
    auto answer = std::make_shared<std::promise<absl::Status>>();
    answers.push_back(answer->get_future());
    membership.fence(static_cast<int>(i), writer.writer, writer.below, limit,
                     [answer](const absl::Status& status) { answer->set_value(status); });
  }
  absl::Status failed;
  for (size_t i = 0; i < servers; ++i) {
    const absl::Status answer = answers[i].get();  // Calls are answered by their deadline.
    if (answer.ok() || !failed.ok()) continue;
    failed = make_status(error_code(answer),
                         absl::StrCat("it did not confirm that no update of this program is being "
                                      "applied: ",
                                      std::string(answer.message())),
                         {membership.task(static_cast<int>(i)), ""});
  }
  return failed;
}

}  // namespace trireme::internal
