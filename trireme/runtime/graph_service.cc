#include "trireme/runtime/graph_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/peer_clock.h"
#include "trireme/base/status.h"
#include "trireme/graph/graph_file.h"
#include "trireme/runtime/crossings.h"
#include "trireme/runtime/master.h"
#include "trireme/runtime/session.pb.h"
#include "trireme/runtime/worker.h"

// Translates between messages and the calls of Master and Worker, and says for each method which
// roles may call it and what a repeated request means.
//
// Threads: handlers run on the threads that serve calls and must not block. Calls that wait for
// other tasks (RegisterGraph, InitializeVariables, an OpenSession that joins a job) move to a small
// pool of their own. Steps never wait on a thread: they answer from the callback of their last
// part. Operators run on the pool "steps", except for short parts, which run on the thread that
// brings the request or the last value.
//
// RunStep and RunPart are answered once: a repetition gets the answer of the first attempt, so that
// a lost answer does not run a step twice. All other methods may be repeated without harm.
namespace trireme {
namespace {

using internal::CrossingValue;
using internal::Master;
using internal::PartResult;
using internal::StepKey;
using internal::Worker;
using std::chrono::milliseconds;

// Roles that may run a client program, which calls the master.
constexpr Roles kClients = {Role::kChief, Role::kWorker, Role::kEvaluator, Role::kClient};
// Roles of tasks, which act as masters and run parts of graphs.
constexpr Roles kTasks = {Role::kChief, Role::kWorker, Role::kPs, Role::kEvaluator};

// Number of threads that wait for other tasks while graphs are registered and jobs are joined.
constexpr int kMasterThreads = 4;

StepKey key_of(const StepId& id) {
  return {id.registration(), id.number()};
}

// Limits the lease to a value whose arithmetic cannot overflow. A master rejects more than a day.
template <typename Proto>
Duration lease_of(const Proto& request) {
  return std::min(milliseconds(request.lease_ms()), milliseconds(std::chrono::hours(25)));
}

template <typename Proto>
VariableScope scope_of(const Proto& request) {
  return {request.job(), request.generation(), request.container()};
}

class GraphService final : public Service {
 public:
  explicit GraphService(TaskContext& context)
      : start_budget_(std::make_shared<ByteBudget>(
            context.start_bytes, context.metrics.counter("runtime/starts_held_back"))),
        channels_(context),
        steps_(std::make_unique<ThreadPool>("steps", context.step_threads)),
        masters_(std::make_unique<ThreadPool>("master", kMasterThreads)),
        worker_(std::make_shared<Worker>(context, channels_, *steps_)),
        master_(std::make_shared<Master>(context, channels_, worker_, *masters_)) {
    worker_->start();
    master_->start();
  }

  ~GraphService() override {
    master_->stop();
    worker_->stop();
    masters_.reset();
    steps_.reset();
  }

  std::vector<Method> methods() override {
    return {
        method<OpenSessionRequest>(internal::kOpenSession, kClients, &GraphService::open_session),
        method<CloseSessionRequest>(internal::kCloseSession, kClients,
                                    &GraphService::close_session),
        method<RegisterGraphRequest>(internal::kRegisterGraph, kClients,
                                     &GraphService::register_graph),
        method<InitializeVariablesRequest>(internal::kInitializeVariables, kClients,
                                           &GraphService::create_variables),
        method<RunStepRequest>(internal::kRunStep, kClients, &GraphService::run_step,
                               Repeats::kAnsweredOnce, start_budget_),
        method<CancelStepRequest>(internal::kCancelStep, kClients, &GraphService::cancel_step),
        method<RegisterPartRequest>(internal::kRegisterPart, kTasks, &GraphService::register_part),
        method<DropPartsRequest>(internal::kDropParts, kTasks, &GraphService::drop_parts),
        method<RunPartRequest>(internal::kRunPart, kTasks, &GraphService::run_part,
                               Repeats::kAnsweredOnce),
        method<DeliverRequest>(internal::kDeliver, kTasks, &GraphService::deliver),
        method<AbortStepRequest>(internal::kAbortStep, kTasks, &GraphService::abort_step),
        method<VariablesRequest>(internal::kFindVariables, kTasks, &GraphService::find_variables),
        method<VariablesRequest>(internal::kMakeVariables, kTasks, &GraphService::make_variables),
        method<RenewSessionRequest>(internal::kRenewSession, kTasks, &GraphService::renew_session),
        method<CloseSessionRequest>(internal::kEndSession, kTasks, &GraphService::end_session),
    };
  }

 private:
  template <typename Request>
  Method method(const char* name, Roles callers,
                void (GraphService::*handler)(const Request&, ServerCall),
                Repeats repeats = Repeats::kHarmless,
                std::shared_ptr<ByteBudget> intake = nullptr) {
    return {name, callers, repeats,
            [this, handler](ServerCall call) {
              const auto request = parse_body<Request>(call.request());
              if (!request.ok()) return call.respond(request.status());
              (this->*handler)(*request, std::move(call));
            },
            std::move(intake)};
  }

  // Runs `body` on a thread that may wait for other tasks, and responds with its result.
  template <typename Body>
  void respond_later(ServerCall call, Body body) {
    masters_->submit([call = std::move(call), body = std::move(body)]() mutable {
      // A caller that has left, or that has sent its request again, must not keep these few threads
      // busy.
      if (call.stop_token().stop_requested()) {
        return call.respond(
            make_status(ErrorCode::kCancelled, "the caller no longer waits for the answer"));
      }
      call.respond(body(call));
    });
  }

  void open_session(const OpenSessionRequest& request, ServerCall call) {
    internal::SessionSettings settings{
        .container = request.container(),
        .lease = lease_of(request),
        .strict_placement = request.strict_placement(),
        .job = {request.job(), request.resume(), request.keep(), request.session(),
                request.generation(),
                from_clock_milliseconds(request.sent_ms(), Clock::real().now())}};
    // Looked up once: the choice of the thread and that between joining and renewing must agree.
    if (!request.job().empty()) settings.member = master_->job_of(request.session());
    const bool joins = !request.job().empty() && settings.member == nullptr;
    const auto open = [this, settings](ServerCall& call) -> absl::StatusOr<Message> {
      OpenSessionResponse response;
      TRIREME_ASSIGN_OR_RETURN(
          const uint64_t generation,
          master_->open_session(settings.job.session, settings, call.deadline()));
      response.set_generation(generation);
      response.set_clock_ms(to_clock_milliseconds(Clock::real().now()));
      return make_message(response);
    };
    // Joining a job waits for other tasks. A renewal must not, since it may come late already.
    if (joins) return respond_later(std::move(call), open);
    call.respond(open(call));
  }

  void close_session(const CloseSessionRequest& request, ServerCall call) {
    master_->close_session(request.session(), call.deadline());
    call.respond(make_message(CloseSessionResponse()));
  }

  void register_graph(const RegisterGraphRequest& request, ServerCall call) {
    respond_later(std::move(call), [this, request](ServerCall& call) -> absl::StatusOr<Message> {
      TRIREME_ASSIGN_OR_RETURN(
          auto data, internal::assemble_graph(request.def(), std::move(call.request().tensors)));
      TRIREME_ASSIGN_OR_RETURN(const Master::NewGraph made,
                               master_->register_graph(request.session(), request.graph(),
                                                       std::move(data), call.deadline()));
      RegisterGraphResponse response;
      response.set_waits_for(made.waits_for);
      if (!made.waits_for.empty()) return make_message(response);
      for (const internal::VariablePlace& place : made.variables) {
        auto* variable = response.add_variables();
        variable->set_name(place.name);
        variable->set_task(place.task.to_string());
        variable->set_incarnation(place.incarnation);
        variable->set_exists(place.exists);
      }
      const auto& missing = made.graph->placed().missing_devices;
      *response.mutable_missing_devices() = {missing.begin(), missing.end()};
      *response.mutable_placed() = made.graph->placed().graph->def;
      return make_message(response);
    });
  }

  void create_variables(const InitializeVariablesRequest& request, ServerCall call) {
    respond_later(std::move(call), [this, request](ServerCall& call) -> absl::StatusOr<Message> {
      TRIREME_RETURN_IF_ERROR(
          master_->create_variables(request.session(), request.graph(),
                                    {request.variables().begin(), request.variables().end()},
                                    call.request().tensors, call.deadline()));
      return make_message(InitializeVariablesResponse());
    });
  }

  void run_step(const RunStepRequest& request, ServerCall call) {
    auto tensors =
        internal::TensorReader(std::move(call.request().tensors)).rest(request.undefined_inputs());
    if (!tensors.ok()) return call.respond(tensors.status());
    auto graph = master_->find_graph(request.session(), request.graph());
    if (!graph.ok()) return call.respond(graph.status());
    if (*graph == nullptr) {
      RunStepResponse response;
      response.set_unknown_graph(true);
      return call.respond(make_message(response));
    }
    internal::StepInputs inputs{*std::move(tensors), request.seed(), request.step(),
                                after_milliseconds(request.timeout_ms()), request.token()};
    master_->run_step(
        *std::move(graph), std::move(inputs),
        [call = std::move(call)](absl::StatusOr<std::vector<at::Tensor>> outputs) mutable {
          if (!outputs.ok()) return call.respond(outputs.status());
          RunStepResponse response;
          std::vector<at::Tensor> tensors;
          internal::append_defined(*std::move(outputs), tensors,
                                   *response.mutable_undefined_outputs());
          call.respond(make_message(response, std::move(tensors)));
        });
  }

  void cancel_step(const CancelStepRequest& request, ServerCall call) {
    master_->cancel_step(request.session(), request.token());
    call.respond(make_message(CancelStepResponse()));
  }

  void register_part(const RegisterPartRequest& request, ServerCall call) {
    call.respond([&]() -> absl::StatusOr<Message> {
      Worker::NewPart part;
      part.session = request.session();
      part.registration = request.registration();
      part.scope = scope_of(request);
      part.lease = lease_of(request);
      TRIREME_ASSIGN_OR_RETURN(part.master,
                               try_call([&] { return TaskId::parse(request.master()); }));
      TRIREME_ASSIGN_OR_RETURN(
          part.graph, internal::assemble_graph(request.def(), std::move(call.request().tensors)));
      part.incarnations = {request.incarnations().begin(), request.incarnations().end()};
      TRIREME_RETURN_IF_ERROR(worker_->register_part(part));
      return make_message(RegisterPartResponse());
    }());
  }

  void drop_parts(const DropPartsRequest& request, ServerCall call) {
    worker_->drop_parts({request.registrations().begin(), request.registrations().end()});
    call.respond(make_message(DropPartsResponse()));
  }

  void run_part(const RunPartRequest& request, ServerCall call) {
    auto tensors =
        internal::TensorReader(std::move(call.request().tensors)).rest(request.undefined_inputs());
    if (!tensors.ok()) return call.respond(tensors.status());
    internal::PartInputs inputs{*std::move(tensors),
                                request.seed(),
                                request.step(),
                                after_milliseconds(request.timeout_ms()),
                                {}};
    worker_->run_part(key_of(request.id()), request.oldest(), std::move(inputs),
                      [call = std::move(call)](absl::StatusOr<PartResult> result) mutable {
                        if (!result.ok()) return call.respond(result.status());
                        RunPartResponse response;
                        std::vector<at::Tensor> tensors;
                        internal::append_defined(std::move(result->outputs), tensors,
                                                 *response.mutable_undefined_outputs());
                        internal::append_crossings(std::move(result->crossings),
                                                   *response.mutable_crossings(), tensors);
                        call.respond(make_message(response, std::move(tensors)));
                      });
  }

  void deliver(const DeliverRequest& request, ServerCall call) {
    internal::TensorReader reader(std::move(call.request().tensors));
    auto values = internal::read_crossings(request.crossings(), reader);
    if (!values.ok()) return call.respond(values.status());
    const absl::Status status = worker_->deliver(key_of(request.id()), *std::move(values),
                                                 after_milliseconds(request.timeout_ms()));
    if (!status.ok()) return call.respond(status);
    call.respond(make_message(DeliverResponse()));
  }

  void abort_step(const AbortStepRequest& request, ServerCall call) {
    worker_->abort_step(key_of(request.id()), make_status(ErrorCode::kAborted, request.reason()));
    call.respond(make_message(AbortStepResponse()));
  }

  void find_variables(const VariablesRequest& request, ServerCall call) {
    const auto exists = worker_->find_variables(scope_of(request),
                                                {request.names().begin(), request.names().end()});
    if (!exists.ok()) return call.respond(exists.status());
    VariablesResponse response;
    for (bool one : *exists) response.add_exists(one);
    call.respond(make_message(response));
  }

  void make_variables(const VariablesRequest& request, ServerCall call) {
    const absl::Status status =
        worker_->make_variables({.session = request.session(),
                                 .lease = lease_of(request),
                                 .scope = scope_of(request),
                                 .names = {request.names().begin(), request.names().end()},
                                 .devices = {request.devices().begin(), request.devices().end()},
                                 .initial = call.request().tensors});
    if (!status.ok()) return call.respond(status);
    call.respond(make_message(VariablesResponse()));
  }

  void renew_session(const RenewSessionRequest& request, ServerCall call) {
    RenewSessionResponse response;
    response.set_known(worker_->renew_session(request.session(), lease_of(request)));
    call.respond(make_message(response));
  }

  void end_session(const CloseSessionRequest& request, ServerCall call) {
    worker_->end_session(request.session());
    call.respond(make_message(CloseSessionResponse()));
  }

  // Limits the bytes of the inputs of steps in flight: further steps wait at their clients. Values
  // that tasks send each other for a step that has started never wait for this budget, because the
  // step could not end without them.
  const std::shared_ptr<ByteBudget> start_budget_;
  PeerChannels channels_;
  std::unique_ptr<ThreadPool> steps_, masters_;
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<Master> master_;
};

}  // namespace

std::unique_ptr<Service> make_graph_service(TaskContext& context) {
  return std::make_unique<GraphService>(context);
}

}  // namespace trireme
