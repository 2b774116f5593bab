#include "trireme/runtime/session_requests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "trireme/base/status.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/cluster/address.h"
#include "trireme/cluster/text.h"
#include "trireme/graph/graph_file.h"
#include "trireme/graph/plan.h"
#include "trireme/runtime/tensor_lists.h"

namespace trireme::internal {

std::string address_of_target(const std::string& target) {
  constexpr absl::string_view kScheme = "grpc://";
  if (absl::StartsWith(target, kScheme)) {
    return in_context("session target",
                      [&] { return Address::parse(target.substr(kScheme.size())).to_string(); });
  }
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("session target '", target,
                           "' is not of the form grpc://HOST:PORT, the address of a server"));
}

absl::Status check_session_job(const SessionOptions& options) {
  if (options.job.empty() || !options.container.empty()) return absl::OkStatus();
  return invalid_argument(
      absl::StrCat("the session names job '", options.job,
                   "', but no container; set SessionOptions::container to share variables with the "
                   "job"));
}

Message OpenRequests::make() const {
  OpenSessionRequest request;
  request.set_session(session_);
  request.set_container(options_.container);
  request.set_lease_ms(options_.lease.count());
  request.set_strict_placement(options_.strict_placement);
  if (!options_.container.empty()) {
    MutexLock lock(mutex_);
    request.set_job(options_.job.empty() ? options_.container : options_.job);
    // A session that the master has forgotten goes on with its variables.
    request.set_resume(options_.resume || generation_ != 0);
    request.set_keep(options_.keep);
    request.set_generation(generation_);
    if (clock_.known()) request.set_sent_ms(clock_.at(Clock::real().now()));
  }
  return make_message(request);
}

absl::Status OpenRequests::note_answer(const Response& answer) {
  if (!answer.ok()) return answer.status();
  TRIREME_ASSIGN_OR_RETURN(const auto response, parse_body<OpenSessionResponse>(*answer));
  MutexLock lock(mutex_);
  // Answers may overtake each other, and a renewal may have begun a new generation.
  generation_ = std::max(generation_, response.generation());
  clock_.note_answer(Clock::real().now(), response.clock_ms());
  return absl::OkStatus();
}

void OpenRequests::forget_clock() {
  MutexLock lock(mutex_);
  clock_ = PeerClock();
}

absl::Status check_reachable(const FunctionStep& step) {
  const Origin origin = {"", absl::StrCat("function '", step.function, "'")};
  for (const auto& variable : step.variables) {
    if (variable->backend == nullptr) continue;
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat(
            "its variable '", variable->name, "' is on ",
            absl::StrJoin(variable->backend->devices(*variable), ", "),
            ", where its strategy keeps it and a session does not use it; call the function "
            "itself, or let the coordinator of a strategy with parameter servers schedule it"),
        origin);
  }
  for (const auto& draw : step.draws) {
    if (draw.resource == 0) continue;
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat("its argument ", draw.argument,
                                    " is an iterator on a worker; let a coordinator schedule it"),
                       origin);
  }
  return absl::OkStatus();
}

Message register_graph_request(uint64_t session, uint64_t graph, const FunctionStep& step) {
  RegisterGraphRequest request;
  request.set_session(session);
  request.set_graph(graph);
  *request.mutable_def() = step.plan->graph->def;
  return make_message(request, constant_rows(*step.plan->graph));
}

absl::Status check_variables_exist(const RegisterGraphResponse& registered) {
  for (const auto& variable : registered.variables()) {
    if (!variable.exists()) return no_longer_exists(variable);
  }
  return absl::OkStatus();
}

absl::Status no_longer_exists(const RegisterGraphResponse::Variable& variable) {
  return make_status(
      ErrorCode::kFailedPrecondition,
      "it no longer exists: its task was restarted, or the session's lease ran out. Call "
      "session.initialize({variable}) to create it again from the value that the program holds",
      {variable.task(), absl::StrCat("variable '", variable.name(), "'")});
}

absl::Status name_is_taken(const RegisterGraphResponse::Variable& variable) {
  return make_status(ErrorCode::kFailedPrecondition,
                     "the session has the contents of an earlier variable with this name, which is "
                     "gone from the program; give the new one another name, or use a new session",
                     {variable.task(), absl::StrCat("variable '", variable.name(), "'")});
}

Message run_step_request(uint64_t session, uint64_t graph, const FunctionStep& step, Time deadline,
                         uint64_t token) {
  RunStepRequest request;
  request.set_timeout_ms(milliseconds_until(deadline));
  request.set_token(token);
  request.set_session(session);
  request.set_graph(graph);
  request.set_seed(step.seed);
  request.set_step(step.step);
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : step.inputs) {
    inputs.push_back(input.defined() ? input.detach() : input);
  }
  append_defined(std::move(inputs), tensors, *request.mutable_undefined_inputs());
  return make_message(request, std::move(tensors));
}

absl::StatusOr<std::optional<std::vector<at::Tensor>>> read_outputs(Response response) {
  if (!response.ok()) return response.status();
  TRIREME_ASSIGN_OR_RETURN(const auto answer, parse_body<RunStepResponse>(*response));
  if (answer.unknown_graph()) return std::nullopt;
  auto outputs = TensorReader(std::move(response->tensors)).rest(answer.undefined_outputs());
  if (!outputs.ok()) return make_status(ErrorCode::kInternal, "the answer lacks an output");
  return std::optional(*std::move(outputs));
}

}  // namespace trireme::internal
