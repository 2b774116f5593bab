#include "trireme/coordinator/closure_batch.h"

#include <utility>

namespace trireme::internal {

void RunningBatches::stop_below(uint64_t sequence) {
  std::vector<std::stop_source> stopped;
  {
    MutexLock lock(mutex_);
    for (ClosureBatch* batch : batches_) {
      if (batch->last_sequence_ < sequence) stopped.push_back(batch->stop_);
    }
  }
  for (std::stop_source& stop : stopped) stop.request_stop();
}

void RunningBatches::stop_unpushed() {
  std::vector<std::stop_source> stopped;
  {
    MutexLock lock(mutex_);
    for (ClosureBatch* batch : batches_) stopped.push_back(batch->unpushed_stop_);
  }
  for (std::stop_source& stop : stopped) stop.request_stop();
}

ClosureBatch::ClosureBatch(std::shared_ptr<ClosureEnvironment> environment, RunningBatches& running,
                           size_t size, uint64_t watermark, uint64_t last_sequence,
                           std::stop_source stop, Done done)
    : environment_(std::move(environment)),
      running_(running),
      watermark_(watermark),
      last_sequence_(last_sequence),
      stop_(std::move(stop)),
      on_stop_(stop_.get_token(),
               [unpushed_stop = unpushed_stop_]() mutable { unpushed_stop.request_stop(); }),
      left_(size),
      answers_(size),
      done_(std::move(done)) {
  MutexLock lock(running_.mutex_);
  running_.batches_.insert(this);
}

ClosureBatch::~ClosureBatch() {
  MutexLock lock(running_.mutex_);
  running_.batches_.erase(this);
}

void ClosureBatch::note_server_failure(const absl::Status& error) {
  MutexLock lock(mutex_);
  if (server_failure_.ok()) server_failure_ = error;
  has_server_failure_ = true;
}

absl::Status ClosureBatch::server_failure() const {
  if (!has_server_failure_) return absl::OkStatus();
  MutexLock lock(mutex_);
  return server_failure_;
}

void ClosureBatch::set(size_t index, RunResult answer) {
  answers_[index] = std::move(answer);  // No lock: each closure has its own element.
  if (left_.fetch_sub(1) == 1) done_(std::move(answers_));
}

}  // namespace trireme::internal
