#include "trireme/runtime/session.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/cluster/address.h"
#include "trireme/graph/graph_file.h"
#include "trireme/placement/cutter.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/timer.h"
#include "trireme/runtime/graph_service.h"
#include "trireme/runtime/peer_channels.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/session_graphs.h"
#include "trireme/runtime/session_variables.h"
#include "trireme/runtime/tensor_lists.h"

// The client's side of a session:
//
// - The first step of a plan registers its graph with the master (known_graph), which places it and
//   sends the parts to their tasks. Then the client creates the variables that do not exist yet.
//   Tasks may not be up: the master answers with the tasks that it waits for, and the client asks
//   again until the deadline.
// - Every further step is one RunStep call (session_graphs.h).
// - From its creation on, a variable has the session as its holder (session_variables.h). Reads and
//   changes of it outside of a function come here, and run as steps.
// - When the master or a task has forgotten the session, after a restart or the end of the lease,
//   the step fails and on_error() forgets all graphs. The next step opens the session again and
//   registers its graph again.
//
// Locks: registering_ serializes registrations and is held during calls, but never while code of
// the user runs, which may read variables. mutex_ and the locks of variables_ and graphs_ are taken
// inside it, one at a time, and are never held during a call.
namespace trireme {
namespace {

using internal::FunctionStep;
using internal::KnownGraph;
using internal::VariableRecord;

constexpr char kScheme[] = "grpc://";
constexpr auto kInitializationPoll = std::chrono::milliseconds(50);
// A master waits less than this for tasks before it answers that they are missing.
constexpr auto kLongestMasterWait = std::chrono::milliseconds(1500);

std::string address_of(const std::string& target) {
  if (absl::StartsWith(target, kScheme)) return target.substr(sizeof(kScheme) - 1);
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("session target '", target,
                           "' is not of the form grpc://HOST:PORT, the address of a server"));
}

// Returns an error if the step uses something that a session cannot reach: variables on parameter
// servers, or iterators on workers.
absl::Status check_reachable(const FunctionStep& step) {
  const Origin origin = {"", absl::StrCat("function '", step.function, "'")};
  for (const auto& variable : step.variables) {
    if (variable->backend == nullptr) continue;
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat("its variable '", variable->name,
                                    "' is on parameter servers, which a session does not use; call "
                                    "the function itself, or let a coordinator schedule it"),
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

absl::Status name_is_taken(const RegisterGraphResponse::Variable& place) {
  return make_status(ErrorCode::kFailedPrecondition,
                     "the session has the contents of an earlier variable with this name, which is "
                     "gone from the program; give the new one another name, or use a new session",
                     {place.task(), absl::StrCat("variable '", place.name(), "'")});
}

// Returns the step with copies of the tensors that the caller passed, since the caller may write to
// them while the step is in flight. They are contiguous, as they are sent. Elements of iterators,
// which follow the arguments, belong to the step alone.
FunctionStep with_own_arguments(FunctionStep step) {
  const at::NoGradGuard no_gradients;
  const internal::SuspendDeviceCheck no_device_check;
  size_t arguments = step.inputs.size();
  for (const internal::Draw& draw : step.draws) arguments = std::min(arguments, draw.first_input);
  for (size_t i = 0; i < arguments; ++i) {
    at::Tensor& input = step.inputs[i];
    if (input.defined()) input = input.detach().clone(at::MemoryFormat::Contiguous);
  }
  return step;
}

}  // namespace

class Session::Impl final : public internal::VariableHolder,
                            public std::enable_shared_from_this<Session::Impl> {
 public:
  Impl(const std::string& target, SessionOptions options)
      : options_(std::move(options)),
        id_(new_incarnation()),
        variables_(absl::StrCat("the session at ", target), options_.container),
        channel_({.address = address_of(target),
                  .credentials = value_or_throw(Credentials::of_program(options_.certs))}) {}

  void open() {
    const Hello hello = value_or_throw(connect_all({&channel_}, step_deadline({}))).front();
    {
      MutexLock lock(mutex_);
      master_ = hello.task;
      incarnation_ = hello.incarnation;
    }
    throw_if_error(open_session(step_deadline({})));
    renew();
  }

  void close() {
    variables_.release(*this);
    CloseSessionRequest request;
    request.set_session(id_);
    // The answer is not waited for: if the call is lost, the lease ends the session.
    channel_.call(internal::kCloseSession, make_message(request),
                  {.deadline = after(std::chrono::seconds(5))}, [](const Response&) {});
  }

  std::string master() const {
    MutexLock lock(mutex_);
    return master_;
  }

  Time step_deadline(const SessionStepOptions& options) const {
    return after(options.timeout.count() > 0 ? options.timeout : options_.timeout);
  }

  // Returns the registered graph of the step's plan. The first call for a plan registers it.
  std::shared_ptr<const KnownGraph> known_graph(const FunctionStep& step, Time deadline) {
    if (auto found = graphs_.find(step.plan.get())) return found;
    MutexLock registering(registering_);
    if (auto found = graphs_.find(step.plan.get())) return found;
    const auto& graph = *step.plan->graph;
    const internal::Fingerprint content =
        internal::fingerprint_of(graph.def.SerializeAsString(), internal::constant_rows(graph));
    if (auto found = graphs_.find_same(step, content)) return found;
    auto known = std::make_shared<KnownGraph>();
    known->graph = graphs_.next_number();
    known->plan = step.plan;
    known->variables.assign(step.variables.begin(), step.variables.end());
    known->content = content;
    known->small_answer =
        internal::bytes_of(graph.def, {graph.def.outputs().begin(), graph.def.outputs().end()}) <=
        internal::kSmallAnswer;
    known->registered = value_or_throw(register_graph(step, known->graph, deadline));
    throw_if_error(make_variables(step, *known, deadline));
    graphs_.add(known);
    return known;
  }

  void run(const FunctionStep& step, const SessionStepOptions& options,
           std::function<void(absl::StatusOr<std::vector<at::Tensor>>)> done) {
    const Time deadline = step_deadline(options);
    const auto known = known_graph(step, deadline);
    channel_.call(internal::kRunStep, request_of(step, *known, deadline, 0),
                  call_options(*known, deadline, options),
                  [self = shared_from_this(), done = std::move(done)](Response response) {
                    done(self->result_of(std::move(response)));
                  });
  }

  absl::StatusOr<std::vector<at::Tensor>> run_now(const FunctionStep& step,
                                                  const SessionStepOptions& options) {
    const Time deadline = step_deadline(options);
    const auto known = known_graph(step, deadline);
    const uint64_t token = options.stop.stop_possible() ? new_incarnation() : 0;
    Response response = channel_.call(internal::kRunStep, request_of(step, *known, deadline, token),
                                      call_options(*known, deadline, options));
    // A stop ends the call at once, and the step must end with it. A stop_callback of its own would
    // not do: the stop first ends the call, and this function could then return and destroy the
    // callback before its turn comes.
    if (!response.ok() && options.stop.stop_requested()) cancel_step(token);
    return result_of(std::move(response));
  }

  Graph placed_graph(const FunctionStep& step) {
    const auto known = known_graph(step, step_deadline({}));
    auto data = std::make_shared<internal::GraphData>();
    data->def = known->registered.placed();
    data->constants = step.plan->graph->constants;
    return internal::Access<Graph>::make(value_or_throw(internal::compile(std::move(data))));
  }

  void initialize(const std::vector<Variable>& variables) {
    MutexLock registering(registering_);
    for (const Variable& variable : variables) {
      variables_.forget(*internal::Access<Variable>::record(variable));
    }
    // Steps now register their graphs again, and create the variables that are missing.
    graphs_.clear();
  }

  at::Tensor read(const VariableRecord& variable) override {
    std::vector<at::Tensor> contents = value_or_throw(run_now(variables_.read_step(variable), {}));
    if (contents.size() == 1 && contents[0].defined()) return contents[0];
    throw Error(ErrorCode::kInternal, "the answer does not have one tensor", {master(), ""});
  }

  void change(const VariableRecord& variable, Change change, const at::Tensor& value) override {
    throw_if_error(run_now(variables_.change_step(variable, change, value), {}).status());
  }

 private:
  void cancel_step(uint64_t token) {
    CancelStepRequest request;
    request.set_session(id_);
    request.set_token(token);
    channel_.call(internal::kCancelStep, make_message(request),
                  {.deadline = after(std::chrono::seconds(10)), .retry = step_retry()},
                  [](const Response&) {});
  }

  Message request_of(const FunctionStep& step, const KnownGraph& known, Time deadline,
                     uint64_t token) const {
    RunStepRequest request;
    request.set_timeout_ms(milliseconds_until(deadline));
    request.set_token(token);
    request.set_session(id_);
    request.set_graph(known.graph);
    request.set_seed(step.seed);
    request.set_step(step.step);
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& input : step.inputs) {
      inputs.push_back(input.defined() ? input.detach() : input);
    }
    internal::append_defined(std::move(inputs), tensors, *request.mutable_undefined_inputs());
    return make_message(request, std::move(tensors));
  }

  static CallOptions call_options(const KnownGraph& known, Time deadline,
                                  const SessionStepOptions& options) {
    return {.deadline = deadline,
            .large_response = !known.small_answer,
            .stop = options.stop,
            .retry = step_retry()};
  }

  absl::StatusOr<std::vector<at::Tensor>> result_of(Response response) {
    if (!response.ok()) return on_error(response.status());
    TRIREME_ASSIGN_OR_RETURN(const auto answer, parse_body<RunStepResponse>(*response));
    auto tensors =
        internal::TensorReader(std::move(response->tensors)).rest(answer.undefined_outputs());
    if (!tensors.ok()) return make_status(ErrorCode::kInternal, "the answer lacks an output");
    return tensors;
  }

  // Handles the error of a call. If the master may have forgotten the session, because it was
  // restarted or the lease ran out, the next step opens it and registers its graph again.
  absl::Status on_error(absl::Status error) {
    const ErrorCode code = error_code(error);
    error = with_origin(std::move(error), {master(), ""});
    if (code == ErrorCode::kIncarnationChanged || code == ErrorCode::kTaskUnreachable ||
        code == ErrorCode::kNotFound) {
      {
        MutexLock lock(mutex_);
        reopen_ = true;
      }
      graphs_.clear();
    }
    return error;
  }

  absl::Status open_session(Time deadline) {
    OpenSessionRequest request;
    request.set_session(id_);
    request.set_container(options_.container);
    request.set_lease_ms(options_.lease.count());
    request.set_strict_placement(options_.strict_placement);
    return channel_
        .call(internal::kOpenSession, make_message(request),
              {.deadline = deadline, .retry = step_retry()})
        .status();
  }

  absl::Status reopen_if_needed(Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(registering_) {
    {
      MutexLock lock(mutex_);
      if (!reopen_) return absl::OkStatus();
    }
    TRIREME_ASSIGN_OR_RETURN(const std::vector<Hello> hello, connect_all({&channel_}, deadline));
    TRIREME_RETURN_IF_ERROR(open_session(deadline));
    MutexLock lock(mutex_);
    incarnation_ = hello.front().incarnation;
    reopen_ = false;
    return absl::OkStatus();
  }

  absl::StatusOr<RegisterGraphResponse> register_graph(const FunctionStep& step, uint64_t number,
                                                       Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registering_) {
    TRIREME_RETURN_IF_ERROR(check_reachable(step));
    TRIREME_RETURN_IF_ERROR(reopen_if_needed(deadline));
    RegisterGraphRequest request;
    request.set_session(id_);
    request.set_graph(number);
    *request.mutable_def() = step.plan->graph->def;
    const Time start = Clock::real().now();
    ReportTimes reports(start);
    RegisterGraphResponse answer;
    for (;;) {
      const Response response =
          channel_.call(internal::kRegisterGraph,
                        make_message(request, internal::constant_rows(*step.plan->graph)),
                        {.deadline = deadline, .large_response = true, .retry = step_retry()});
      if (!response.ok()) return on_error(response.status());
      TRIREME_ASSIGN_OR_RETURN(answer, parse_body<RegisterGraphResponse>(*response));
      if (answer.waits_for().empty()) break;
      const Time now = Clock::real().now();
      if (now + kLongestMasterWait >= deadline) {
        return make_status(ErrorCode::kDeadlineExceeded,
                           absl::StrCat("waited ", format_duration(now - start), " for ",
                                        answer.waits_for(), ", as seen from ", master()),
                           {master(), absl::StrCat("function '", step.function, "'")});
      }
      if (reports.due(now)) log_warning("waiting for ", answer.waits_for());
    }
    for (const std::string& missing : answer.missing_devices()) {
      MutexLock lock(mutex_);
      if (warned_.insert(missing).second) {
        log_warning("function '", step.function, "': ", missing);
      }
    }
    return answer;
  }

  absl::Status make_variables(const FunctionStep& step, KnownGraph& known, Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registering_) {
    InitializeVariablesRequest request;
    request.set_session(id_);
    request.set_graph(known.graph);
    std::vector<at::Tensor> initial;
    const auto& places = known.registered.variables();
    if (places.size() != static_cast<int>(step.variables.size())) {
      return make_status(ErrorCode::kInternal,
                         "the master lists a different number of variables than the graph");
    }
    for (int i = 0; i < places.size(); ++i) {
      const auto& place = places[i];
      const VariableRecord& variable = *step.variables[i];
      if (place.exists()) {
        if (variables_.is_name_taken(variable)) return name_is_taken(place);
        hold(step, known, i);
        continue;
      }
      if (variables_.has_seen(variable)) {
        return make_status(
            ErrorCode::kFailedPrecondition,
            "it no longer exists: its task was restarted, or the session's lease ran out. Call "
            "session.initialize({variable}) to create it again from the value that the program "
            "holds",
            {place.task(), absl::StrCat("variable '", place.name(), "'")});
      }
      if (const std::string holder = internal::held_elsewhere(variable); !holder.empty()) {
        log_warning("variable '", place.name(), "' begins in this session with the value that the ",
                    "program had, although ", holder,
                    ", holds another; to share it, name one container in both sessions");
      }
      request.add_variables(static_cast<uint32_t>(i));
      initial.push_back(internal::program_contents(variable.tensor));
    }
    if (initial.empty()) return absl::OkStatus();
    if (!options_.initializes) return wait_for_variables(step, known, deadline);
    // The call is streamed so that the master sees its deadline instead of that of one attempt: the
    // master calls other tasks, and its answer about them is final.
    const Response response =
        channel_.call(internal::kInitializeVariables, make_message(request, std::move(initial)),
                      {.deadline = deadline, .large_response = true, .retry = step_retry()});
    if (!response.ok()) return on_error(response.status());
    for (uint32_t i : request.variables()) hold(step, known, static_cast<int>(i));
    return absl::OkStatus();
  }

  // Notes that variable `i` of a step exists on its task, which has the contents from now on.
  void hold(const FunctionStep& step, const KnownGraph& known, int i) {
    const auto& place = known.registered.variables(i);
    variables_.hold(step.variables[i], shared_from_this(), place.task(), place.incarnation());
  }

  // Waits until another session has initialised the variables. Asks by registering the graph again.
  absl::Status wait_for_variables(const FunctionStep& step, KnownGraph& known, Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registering_) {
    while (true) {
      const auto& places = known.registered.variables();
      const auto missing =
          std::ranges::find_if(places, [](const auto& place) { return !place.exists(); });
      if (missing == places.end()) break;
      const absl::Status late = make_status(
          ErrorCode::kDeadlineExceeded,
          absl::StrCat("it was not initialised before the deadline; this session waits for another "
                       "session of container '",
                       options_.container, "' to initialise it"),
          {missing->task(), absl::StrCat("variable '", missing->name(), "'")});
      if (after(kInitializationPoll) > deadline) return late;
      call_and_wait<bool>(
          [](auto done) { internal::run_at(after(kInitializationPoll), [done] { done(true); }); });
      auto again = register_graph(step, known.graph, deadline);
      if (!again.ok()) {
        return error_code(again.status()) == ErrorCode::kDeadlineExceeded ? late : again.status();
      }
      known.registered = *std::move(again);
    }
    for (int i = 0; i < known.registered.variables_size(); ++i) hold(step, known, i);
    return absl::OkStatus();
  }

  // Renews the session at the master every quarter of its lease, until the session is destroyed.
  void renew() {
    internal::run_at(after(options_.lease / 4), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      OpenSessionRequest request;
      request.set_session(self->id_);
      request.set_container(self->options_.container);
      request.set_lease_ms(self->options_.lease.count());
      request.set_strict_placement(self->options_.strict_placement);
      self->channel_.call(internal::kOpenSession, make_message(request),
                          {.deadline = after(self->options_.lease / 4)},
                          [](const Response&) {});  // steps notice if the session is lost
      self->renew();
    });
  }

  const SessionOptions options_;
  const uint64_t id_;
  internal::SessionVariables variables_;
  internal::SessionGraphs graphs_;
  Channel channel_;
  Mutex registering_;  // held while a graph is registered
  mutable Mutex mutex_;
  std::string master_ ABSL_GUARDED_BY(mutex_);
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reopen_ ABSL_GUARDED_BY(mutex_) = false;  // true if the session must be opened again
  std::set<std::string> warned_ ABSL_GUARDED_BY(mutex_);
};

Session::Session(const std::string& target, SessionOptions options)
    : impl_(std::make_shared<Impl>(target, std::move(options))) {
  impl_->open();
}

Session::~Session() {
  impl_->close();
}

std::string Session::master() const {
  return impl_->master();
}

std::vector<at::Tensor> Session::run_step(const FunctionStep& step,
                                          const SessionStepOptions& options) {
  return value_or_throw(impl_->run_now(step, options));
}

void Session::start_step(const FunctionStep& step, const SessionStepOptions& options, OnStep done) {
  impl_->run(with_own_arguments(step), options,
             [done = std::move(done)](absl::StatusOr<std::vector<at::Tensor>> result) {
               if (result.ok()) return done(*std::move(result), nullptr);
               done({}, std::make_exception_ptr(to_error(result.status())));
             });
}

Graph Session::placed_graph(const FunctionStep& step) {
  return impl_->placed_graph(step);
}

void Session::initialize(const std::vector<Variable>& variables) {
  impl_->initialize(variables);
}

}  // namespace trireme
