#include "trireme/runtime/local_task.h"

#include <utility>

#include "trireme/base/status.h"

namespace trireme::internal {

LocalTask::LocalTask(std::shared_ptr<Worker> worker, uint64_t incarnation)
    : worker_(std::move(worker)), incarnation_(incarnation) {}

void LocalTask::register_part(const Worker::NewPart& part, Time, OnStatus done) {
  done(worker_->register_part(part));
}

void LocalTask::drop_part(uint64_t registration) {
  worker_->drop_parts({registration});
}

void LocalTask::run_part(const StepKey& key, uint64_t oldest, const GraphPart&, PartInputs inputs,
                         OnPartResult done) {
  worker_->run_part(key, oldest, std::move(inputs), std::move(done));
}

void LocalTask::abort_step(const StepKey& key, const std::string& reason) {
  worker_->abort_step(key, make_status(ErrorCode::kAborted, reason));
}

void LocalTask::check_health(Time, OnStatus done) {
  done(absl::OkStatus());
}

absl::StatusOr<std::vector<bool>> LocalTask::find_variables(const VariableScope& scope,
                                                            const std::vector<std::string>& names,
                                                            Time) {
  return worker_->find_variables(scope, names);
}

void LocalTask::make_variables(NewVariables variables, Time, OnStatus done) {
  done(worker_->make_variables(variables));
}

void LocalTask::renew_session(uint64_t session, Duration lease) {
  worker_->renew_session(session, lease);
}

void LocalTask::end_session(uint64_t session, Time) {
  worker_->end_session(session);
}

}  // namespace trireme::internal
