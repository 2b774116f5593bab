#include "trireme/runtime/remote_task.h"

#include <chrono>
#include <utility>

#include "trireme/base/status.h"
#include "trireme/graph/graph_file.h"
#include "trireme/runtime/crossings.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/tensor_lists.h"
#include "trireme/runtime/worker_methods.h"

namespace trireme::internal {
namespace {

// Time limit of calls that ask a task to drop something. Their answers are ignored.
constexpr auto kCleanupTimeout = std::chrono::seconds(10);

int64_t lease_milliseconds(Duration lease) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(lease).count();
}

void set_step_id(const StepKey& key, StepId& id) {
  id.set_registration(key.registration);
  id.set_number(key.number);
}

template <typename Request>
void set_scope(const VariableScope& scope, Request& request) {
  request.set_job(scope.job);
  request.set_generation(scope.generation);
  request.set_container(scope.container);
}

absl::StatusOr<PartResult> read_part_result(Response response, size_t outputs) {
  if (!response.ok()) return response.status();
  TRIREME_ASSIGN_OR_RETURN(const auto answer, parse_body<RunPartResponse>(*response));
  TensorReader reader(std::move(response->tensors));
  auto values = reader.next(static_cast<uint32_t>(outputs), answer.undefined_outputs());
  if (!values.ok()) return make_status(ErrorCode::kInternal, "the answer lacks an output");
  auto crossings = read_crossings(answer.crossings(), reader);
  if (!crossings.ok()) {
    return make_status(ErrorCode::kInternal, "the answer lacks a value for the master");
  }
  return PartResult{*std::move(values), *std::move(crossings)};
}

// Returns a callback that passes the status of a call to `done`, with the task as its origin.
OnResponse report_status(const std::string& task, TaskStub::OnStatus done) {
  return [task, done = std::move(done)](const Response& response) mutable {
    done(with_origin(response.status(), {task, ""}));
  };
}

void ignore_response(const Response&) {}

}  // namespace

RemoteTask::RemoteTask(std::shared_ptr<Channel> channel, uint64_t incarnation,
                       std::shared_ptr<HealthChecker> health_checker)
    : channel_(std::move(channel)),
      incarnation_(incarnation),
      health_checker_(std::move(health_checker)) {}

void RemoteTask::register_part(const Worker::NewPart& part, Time deadline, OnStatus done) {
  RegisterPartRequest request;
  request.set_session(part.session);
  request.set_registration(part.registration);
  set_scope(part.scope, request);
  request.set_lease_ms(lease_milliseconds(part.lease));
  request.set_master(part.master.to_string());
  *request.mutable_def() = part.graph->def;
  for (const auto& [task, incarnation] : part.incarnations) {
    (*request.mutable_incarnations())[task] = incarnation;
  }
  channel_->call(kRegisterPart, make_message(request, constant_rows(*part.graph)),
                 {.deadline = deadline, .incarnation = incarnation_, .retry = step_retry()},
                 report_status(channel_->task(), std::move(done)));
}

void RemoteTask::drop_part(uint64_t registration) {
  DropPartsRequest request;
  request.add_registrations(registration);
  channel_->call(kDropParts, make_message(request),
                 {.deadline = after(kCleanupTimeout), .retry = step_retry()}, ignore_response);
}

void RemoteTask::run_part(const StepKey& key, uint64_t oldest, const GraphPart& part,
                          PartInputs inputs, OnPartResult done) {
  RunPartRequest request;
  set_step_id(key, *request.mutable_id());
  request.set_seed(inputs.seed);
  request.set_step(inputs.step);
  request.set_oldest(oldest);
  request.set_timeout_ms(milliseconds_until(inputs.deadline));
  std::vector<at::Tensor> tensors;
  append_defined(std::move(inputs.tensors), tensors, *request.mutable_undefined_inputs());
  channel_->call(
      kRunPart, make_message(request, std::move(tensors)),
      {.deadline = inputs.deadline,
       .incarnation = incarnation_,
       .large_response = !part.small_answer,
       .stop = std::move(inputs.stop),
       .retry = step_retry()},
      [outputs = part.outputs.size(), done = std::move(done)](Response response) mutable {
        done(read_part_result(std::move(response), outputs));
      });
}

void RemoteTask::abort_step(const StepKey& key, const std::string& reason) {
  AbortStepRequest request;
  set_step_id(key, *request.mutable_id());
  request.set_reason(reason);
  channel_->call(
      kAbortStep, make_message(request),
      {.deadline = after(kCleanupTimeout), .incarnation = incarnation_, .retry = step_retry()},
      ignore_response);
}

void RemoteTask::check_health(Time limit, OnStatus done) {
  health_checker_->check(channel_, incarnation_, {.limit = limit}, std::move(done));
}

absl::StatusOr<std::vector<bool>> RemoteTask::find_variables(const VariableScope& scope,
                                                             const std::vector<std::string>& names,
                                                             Time deadline) {
  VariablesRequest request;
  set_scope(scope, request);
  *request.mutable_names() = {names.begin(), names.end()};
  const Response response = channel_->call(kFindVariables, make_message(request),
                                           {.deadline = deadline, .retry = step_retry()});
  if (!response.ok()) return with_origin(response.status(), {channel_->task(), ""});
  TRIREME_ASSIGN_OR_RETURN(const auto answer, parse_body<VariablesResponse>(*response));
  return std::vector<bool>(answer.exists().begin(), answer.exists().end());
}

void RemoteTask::make_variables(NewVariables variables, Time deadline, OnStatus done) {
  VariablesRequest request;
  set_scope(variables.scope, request);
  request.set_session(variables.session);
  request.set_lease_ms(lease_milliseconds(variables.lease));
  *request.mutable_names() = {variables.names.begin(), variables.names.end()};
  *request.mutable_devices() = {variables.devices.begin(), variables.devices.end()};
  channel_->call(kMakeVariables, make_message(request, std::move(variables.initial)),
                 {.deadline = deadline, .retry = step_retry()},
                 report_status(channel_->task(), std::move(done)));
}

void RemoteTask::renew_session(uint64_t session, Duration lease) {
  RenewSessionRequest request;
  request.set_session(session);
  request.set_lease_ms(lease_milliseconds(lease));
  channel_->call(kRenewSession, make_message(request),
                 {.deadline = after(lease / 4), .retry = step_retry()}, ignore_response);
}

void RemoteTask::end_session(uint64_t session, Time deadline) {
  CloseSessionRequest request;
  request.set_session(session);
  channel_->call(kEndSession, make_message(request), {.deadline = deadline, .retry = step_retry()},
                 ignore_response);
}

}  // namespace trireme::internal
