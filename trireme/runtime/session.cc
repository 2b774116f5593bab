#include "trireme/runtime/session.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/mutex.h"
#include "trireme/base/reminder.h"
#include "trireme/base/status.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/variable_backend.h"
#include "trireme/capture/variable_registry.h"
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
#include "trireme/runtime/session_requests.h"
#include "trireme/runtime/session_variables.h"

// The client's side of a session:
//
// - The first step of a plan registers its graph with the master (known_graph), which places it and
//   sends the parts to their tasks. Then the client creates the variables that do not exist yet.
//   Tasks may not be up: the master answers with the tasks that it waits for, and the client asks
//   again until the deadline.
// - Every further step is one RunStep call (session_graphs.h). The master keeps the graphs that the
//   session used last. If it has evicted the graph of a step, it answers so, and the client
//   registers the graph and sends the step again (register_again).
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
using StepOutputs = std::vector<at::Tensor>;
using OnStepOutputs = std::function<void(absl::StatusOr<StepOutputs>)>;

constexpr auto kInitializationPoll = std::chrono::milliseconds(50);
// Time between two renewals of a session that takes part in a job. The lease of the job is 3 s.
constexpr auto kJobRenewal = std::chrono::milliseconds(1000);
// A master waits less than this for tasks before it answers that they are missing.
constexpr auto kLongestMasterWait = std::chrono::milliseconds(1500);

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
        open_requests_(id_, options_),
        variables_(absl::StrCat("the session at ", target),
                   absl::StrCat(options_.job, options_.job.empty() ? "" : ":", options_.container)),
        channel_({.address = internal::address_of_target(target),
                  .credentials = value_or_throw(Credentials::of_program(options_.certs))}) {}

  void open() {
    const Hello hello = value_or_throw(connect_all({&channel_}, step_deadline({}))).front();
    {
      MutexLock lock(mutex_);
      master_ = hello.task;
      incarnation_ = hello.incarnation;
    }
    throw_if_error(internal::check_session_job(options_));
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

  void run(FunctionStep step, const SessionStepOptions& options, OnStepOutputs done) {
    const Time deadline = step_deadline(options);
    auto known = known_graph(step, deadline);
    send({std::make_shared<const FunctionStep>(std::move(step)), std::move(known), deadline,
          options},
         std::move(done));
  }

  absl::StatusOr<StepOutputs> run_now(const FunctionStep& step, const SessionStepOptions& options) {
    const Time deadline = step_deadline(options);
    const uint64_t token = options.stop.stop_possible() ? new_incarnation() : 0;
    auto outputs = send_and_wait(step, known_graph(step, deadline), deadline, options, token);
    // A stop ends the call at once, and the step must end with it. A stop_callback of its own would
    // not do: the stop first ends the call, and this function could then return and destroy the
    // callback before its turn comes.
    if (!outputs.ok() && options.stop.stop_requested()) cancel_step(token);
    return outputs;
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

  static CallOptions call_options(const KnownGraph& known, Time deadline,
                                  const SessionStepOptions& options) {
    return {.deadline = deadline,
            .large_response = !known.small_answer,
            .stop = options.stop,
            .retry = step_retry()};
  }

  // A step with all that is needed to send it, again if necessary.
  struct SentStep {
    std::shared_ptr<const FunctionStep> step;
    std::shared_ptr<const KnownGraph> known;
    Time deadline;
    SessionStepOptions options;
    uint64_t token = 0;
  };

  absl::StatusOr<StepOutputs> send_and_wait(const FunctionStep& step,
                                            const std::shared_ptr<const KnownGraph>& known,
                                            Time deadline, const SessionStepOptions& options,
                                            uint64_t token) {
    auto outputs = internal::read_outputs(channel_.call(
        internal::kRunStep, internal::run_step_request(id_, known->graph, step, deadline, token),
        call_options(*known, deadline, options)));
    if (!outputs.ok()) return on_error(outputs.status());
    if (*outputs) return **std::move(outputs);
    return call_and_wait<absl::StatusOr<StepOutputs>>([&](auto done) {
      register_again({std::make_shared<const FunctionStep>(step), known, deadline, options, token},
                     std::move(done));
    });
  }

  // Sends a step without waiting for its result.
  void send(const SentStep& sent, OnStepOutputs done) {
    channel_.call(
        internal::kRunStep,
        internal::run_step_request(id_, sent.known->graph, *sent.step, sent.deadline, sent.token),
        call_options(*sent.known, sent.deadline, sent.options),
        [self = shared_from_this(), sent, done = std::move(done)](Response response) {
          auto outputs = internal::read_outputs(std::move(response));
          if (!outputs.ok()) return done(self->on_error(outputs.status()));
          if (*outputs) return done(**std::move(outputs));
          self->register_again(sent, done);
        });
  }

  // Registers a graph that the master has evicted, and sends the step again. Does not block. The
  // graph's variables exist, so that none has to be created.
  void register_again(const SentStep& sent, OnStepOutputs done) {
    channel_.call(
        internal::kRegisterGraph,
        internal::register_graph_request(id_, sent.known->graph, *sent.step),
        {.deadline = sent.deadline,
         .large_response = true,
         .stop = sent.options.stop,
         .retry = step_retry()},
        [self = shared_from_this(), sent, done = std::move(done)](const Response& response) {
          const auto answer = response.ok()
                                  ? parse_body<RegisterGraphResponse>(*response)
                                  : absl::StatusOr<RegisterGraphResponse>(response.status());
          if (!answer.ok()) return done(self->on_error(answer.status()));
          if (!answer->waits_for().empty()) {
            if (after(kLongestMasterWait) < sent.deadline) return self->register_again(sent, done);
            return done(make_status(
                ErrorCode::kDeadlineExceeded,
                absl::StrCat("waited for ", answer->waits_for(), ", as seen from ", self->master()),
                {self->master(), absl::StrCat("function '", sent.step->function, "'")}));
          }
          const absl::Status exist = internal::check_variables_exist(*answer);
          if (!exist.ok()) return done(exist);
          self->send(sent, done);
        });
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
    RetryPolicy retry = step_retry();
    // The master may wait for the end of the lease of an earlier program.
    if (!options_.container.empty()) retry.attempt_time = std::chrono::seconds(20);
    return open_requests_.note_answer(channel_.call(internal::kOpenSession, open_requests_.make(),
                                                    {.deadline = deadline, .retry = retry}));
  }

  absl::Status reopen_if_needed(Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(registering_) {
    {
      MutexLock lock(mutex_);
      if (!reopen_) return absl::OkStatus();
    }
    TRIREME_ASSIGN_OR_RETURN(const std::vector<Hello> hello, connect_all({&channel_}, deadline));
    open_requests_.forget_clock();
    TRIREME_RETURN_IF_ERROR(open_session(deadline));
    MutexLock lock(mutex_);
    incarnation_ = hello.front().incarnation;
    reopen_ = false;
    return absl::OkStatus();
  }

  absl::StatusOr<RegisterGraphResponse> register_graph(const FunctionStep& step, uint64_t number,
                                                       Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registering_) {
    TRIREME_RETURN_IF_ERROR(internal::check_reachable(step));
    TRIREME_RETURN_IF_ERROR(reopen_if_needed(deadline));
    const Time start = Clock::real().now();
    ReportTimes reports(start);
    RegisterGraphResponse answer;
    for (;;) {
      const Response response = channel_.call(
          internal::kRegisterGraph, internal::register_graph_request(id_, number, step),
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
        if (variables_.is_name_taken(variable)) return internal::name_is_taken(place);
        hold(step, known, i);
        continue;
      }
      if (variables_.has_seen(variable)) return internal::no_longer_exists(place);
      internal::warn_of_other_holder(variable);
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
    Reminder reminder;
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
      if (reminder.is_due()) {
        log_warning("variable '", missing->name(), "' on ", missing->task(),
                    " is not initialised yet: this session waits for the one of container '",
                    options_.container,
                    "' that initialises, which is the chief's; is its program running?");
      }
      internal::block_until(after(kInitializationPoll));
      auto again = register_graph(step, known.graph, deadline);
      if (!again.ok()) {
        return error_code(again.status()) == ErrorCode::kDeadlineExceeded ? late : again.status();
      }
      known.registered = *std::move(again);
    }
    for (int i = 0; i < known.registered.variables_size(); ++i) hold(step, known, i);
    return absl::OkStatus();
  }

  // Returns the time between two renewals.
  Duration renewal_period() const {
    const Duration quarter = options_.lease / 4;
    return options_.container.empty() ? quarter : std::min<Duration>(quarter, kJobRenewal);
  }

  // Renews the session at the master, now and then periodically until the session is destroyed. The
  // first renewal shows other programs of its job that this one is alive.
  void renew() {
    channel_.call(internal::kOpenSession, open_requests_.make(),
                  {.deadline = after(options_.lease / 4)},
                  [weak = weak_from_this()](const Response& response) {
                    const auto self = weak.lock();
                    // Steps notice if the session is lost.
                    if (self) self->open_requests_.note_answer(response).IgnoreError();
                  });
    internal::run_at(after(renewal_period()), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->renew();
    });
  }

  const SessionOptions options_;
  const uint64_t id_;
  internal::OpenRequests open_requests_;
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
             [done = std::move(done)](absl::StatusOr<StepOutputs> result) {
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
