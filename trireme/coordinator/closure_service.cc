#include "trireme/coordinator/closure_service.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_host.h"
#include "trireme/coordinator/element_shapes.h"
#include "trireme/coordinator/ending_executor.h"
#include "trireme/coordinator/hosted_function.h"
#include "trireme/coordinator/resource_reader.h"
#include "trireme/data/data_root.h"
#include "trireme/data/dataset_data.h"
#include "trireme/graph/graph_file.h"

// The worker's side of closures.proto. The service has a ClosureHost for each coordinator, which
// holds everything that the coordinator has registered.
//
// Life of a host: Connect makes it, Disconnect removes it and cancels its closures. A coordinator
// that dies sends no Disconnect. Its host is evicted when another coordinator connects, if it was
// not used for ten minutes and runs nothing. Calls for an evicted host fail with NOT_FOUND, and the
// coordinator connects again.
//
// Threads: handlers are called on threads that serve the network and must not block. Connect,
// Register and Create may wait for parameter servers or build iterators, so they run on one setup
// thread. Batches run on the closures pool, except quick ones, which run in place because waking
// another thread would take longer. No lock is held while a host runs closures.
//
// Requests come from the network, so their counts, indices, shapes and graphs are checked before
// they are used.
namespace trireme {
namespace internal {

void set_answer(const RunResult& answer, ClosureResponse& result,
                std::vector<at::Tensor>& message) {
  for (const std::vector<Element>& elements : answer.drawn) {
    ClosureResponse::Drawn* drawn = result.add_drawn();
    for (const Element& element : elements) set_shape(element, *drawn->add_elements());
  }
  if (!answer.drawn.empty() || answer.end) {
    result.set_runs_done(answer.runs_done);
    result.set_tensors(append_defined(answer.sums, message, *result.mutable_undefined()));
  }
  if (!answer.drawn.empty()) return;
  if (answer.result.ok()) {
    result.set_tensors(append_defined(*answer.result, message, *result.mutable_undefined()));
    return;
  }
  const absl::Status& status = answer.result.status();
  result.mutable_failure()->set_code(static_cast<uint32_t>(status.code()));
  result.mutable_failure()->set_message(std::string(status.message()));
  result.mutable_failure()->set_details(encode_error_details(status));
  result.set_nothing_pushed(answer.nothing_pushed);
  if (!answer.end) return;
  result.mutable_end()->set_draw(static_cast<uint32_t>(answer.end->draw));
  result.mutable_end()->set_number(answer.end->number);
  result.mutable_end()->set_is_beyond(answer.end->is_beyond);
}

ClosureResult result_of(const ClosureResponse& result, TensorReader& reader) {
  if (!result.has_failure()) return reader.next(result.tensors(), result.undefined());
  const auto& failure = result.failure();
  absl::Status status = status_from_wire(static_cast<absl::StatusCode>(failure.code()),
                                         failure.message(), failure.details());
  if (status.ok()) {
    return make_status(ErrorCode::kInternal, "the worker sent a failure without an error code");
  }
  return status;
}

}  // namespace internal

namespace {

using internal::ClosureHost;
using internal::ReceivedClosure;
using internal::RunResult;

// Roles that may schedule closures: the chief, or a client program that is not a task.
constexpr Roles kCoordinators = {Role::kChief, Role::kClient};

constexpr size_t kMostCoordinators = 256;
constexpr auto kForgottenAfter = std::chrono::minutes(10);
constexpr auto kConnectTime = std::chrono::seconds(5);
constexpr int kMostUpdatesAtOnce = 1024;

// Retries of a closure's pulls and pushes. Gives up soon on a server that cannot be reached,
// because the coordinator decides whether that server is lost.
constexpr RetryPolicy kServerRetry = {.attempt_time = std::chrono::seconds(10),
                                      .first_delay = std::chrono::milliseconds(20),
                                      .longest_delay = std::chrono::milliseconds(500),
                                      .unreachable_time = std::chrono::seconds(2)};

// Answers the call that brought a batch, once: when all its closures have ended, or earlier if the
// caller has gone or the server stops. If it answers earlier, the closures are told to stop.
// Thread-safe.
class BatchAnswer {
 public:
  explicit BatchAnswer(ServerCall call) : call_(std::move(call)) {
    on_stop_.emplace(call_->stop_token(), [this] {
      stop_.request_stop();
      respond(make_status(ErrorCode::kCancelled,
                          "the coordinator has cancelled the call, or the server stops"));
    });
  }

  const std::stop_source& stop() const { return stop_; }

  void respond(const absl::StatusOr<std::vector<RunResult>>& answers) {
    std::optional<ServerCall> call;
    {
      MutexLock lock(mutex_);
      call.swap(call_);
    }
    if (!call) return;
    if (!answers.ok()) return call->respond(answers.status());
    RunClosuresResponse response;
    std::vector<at::Tensor> tensors;
    Duration busy = {};
    for (const RunResult& answer : *answers) {
      internal::set_answer(answer, *response.add_results(), tensors);
      busy += answer.busy;
    }
    response.set_microseconds(std::chrono::duration_cast<std::chrono::microseconds>(busy).count());
    call->respond(make_message(response, std::move(tensors)));
  }

 private:
  std::stop_source stop_;
  Mutex mutex_;
  std::optional<ServerCall> call_;
  // Last, so that it is destroyed first: its callback uses the other members.
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

// Returns the layout of a variable on the servers, or nullopt if its value comes with each closure.
absl::StatusOr<std::optional<VariableLayout>> layout_of(const FunctionVariable& variable,
                                                        const proto::TensorType& type,
                                                        int servers) {
  if (variable.shards().empty()) return std::nullopt;
  VariableLayout layout;
  layout.name = variable.name();
  layout.sizes = {type.sizes().begin(), type.sizes().end()};
  layout.dtype = static_cast<c10::ScalarType>(type.dtype());
  const int64_t rows = layout.sizes.empty() ? 1 : layout.sizes[0], shards = variable.shards_size();
  if (shards > std::max<int64_t>(rows, 1)) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("it has ", shards, " shards but only ", rows, " rows"),
                       {"", absl::StrCat("variable '", variable.name(), "'")});
  }
  const std::vector<RowRange> ranges = split_rows(rows, shards);
  for (int i = 0; i < variable.shards_size(); ++i) {
    const FunctionVariable::Shard& shard = variable.shards(i);
    if (shard.server() >= static_cast<uint32_t>(servers)) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("it has a shard on parameter server ", shard.server(),
                                      ", which does not exist"),
                         {"", absl::StrCat("variable '", variable.name(), "'")});
    }
    layout.shards.push_back({shard.name(), static_cast<int>(shard.server()), ranges[i]});
  }
  return layout;
}

// Returns the numbers of the elements of a draw.
absl::StatusOr<std::vector<internal::NumberSpan>> spans_of(const ClosureRequest::Draw& draw) {
  std::vector<internal::NumberSpan> spans;
  for (const NumberRange& range : draw.numbers()) {
    spans.push_back({range.first(), range.count()});
    if (internal::is_valid(spans.back())) continue;
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("a closure draws ", range.count(), " elements from element ",
                                    range.first(), " on, which cannot be their numbers"));
  }
  return spans;
}

class ClosureService final : public Service {
 public:
  explicit ClosureService(TaskContext& context) : context_(context) {}

  ~ClosureService() override {
    if (pools_ == nullptr) return;
    pools_->ending->end();
    pools_.reset();
  }

  std::vector<Method> methods() override {
    return {
        method<ConnectCoordinatorRequest>(internal::kConnectCoordinator, &ClosureService::connect),
        method<RegisterFunctionRequest>(internal::kRegisterFunction,
                                        &ClosureService::register_function),
        method<CreateResourceRequest>(internal::kCreateResource, &ClosureService::create),
        method<RunClosuresRequest>(internal::kRunClosures, &ClosureService::run),
        method<CancelClosuresRequest>(internal::kCancelClosures, &ClosureService::cancel),
        method<DisconnectCoordinatorRequest>(internal::kDisconnectCoordinator,
                                             &ClosureService::disconnect),
    };
  }

 private:
  // The threads that run closures, made when the first coordinator connects.
  struct Pools {
    explicit Pools(int threads)
        : closures("closures", threads),
          setup("closures-setup", 1),
          ending(std::make_shared<internal::EndingExecutor>(closures)) {}
    ThreadPool closures;  // Runs the operators.
    ThreadPool setup;     // Waits for parameter servers.
    // Submits work of the hosts, which may outlive the pools, to `closures`.
    std::shared_ptr<internal::EndingExecutor> ending;
  };
  struct Known {
    std::shared_ptr<ClosureHost> host;
    Time used;  // Time of the last call for this host.
  };

  // Calls may be repeated without harm, even Run: servers recognize the pushes of a repeated run.
  template <typename Request>
  Method method(const char* name, void (ClosureService::*handler)(const Request&, ServerCall)) {
    return {name, kCoordinators, Repeats::kHarmless, [this, handler](ServerCall call) {
              const auto request = parse_body<Request>(call.request());
              if (!request.ok()) return call.respond(request.status());
              (this->*handler)(*request, std::move(call));
            }};
  }

  Pools& pools() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (pools_ == nullptr) pools_ = std::make_unique<Pools>(context_.step_threads);
    return *pools_;
  }

  absl::StatusOr<std::shared_ptr<ClosureHost>> host_of(uint64_t coordinator) {
    MutexLock lock(mutex_);
    const auto found = hosts_.find(coordinator);
    if (found == hosts_.end()) {
      return make_status(ErrorCode::kNotFound,
                         "the coordinator is not connected to this worker, or its connection has "
                         "expired");
    }
    found->second.used = Clock::real().now();
    return found->second.host;
  }

  void connect(const ConnectCoordinatorRequest& request, ServerCall call) {
    MutexLock lock(mutex_);
    pools().setup.submit([this, request, call = std::move(call)]() mutable {
      call.respond(connect_now(request, call.deadline()));
    });
  }

  absl::StatusOr<Message> connect_now(const ConnectCoordinatorRequest& request, Time deadline) {
    const std::vector<uint64_t> servers(request.servers().begin(), request.servers().end());
    ConnectCoordinatorResponse response;
    if (const auto known = host_of(request.coordinator());
        known.ok() && (*known)->server_incarnations() == servers) {
      response.set_known(true);
      return make_message(response);
    }
    const int tasks = context_.spec.num_tasks("ps");
    if (static_cast<int>(servers.size()) != tasks) {
      return make_status(ErrorCode::kFailedPrecondition,
                         absl::StrCat("the coordinator has ", servers.size(),
                                      " parameter servers and this task's cluster spec has ", tasks,
                                      "; give both the same cluster spec"),
                         {context_.task.to_string(), ""});
    }
    TRIREME_ASSIGN_OR_RETURN(auto client,
                             PsClient::connect({.spec = context_.spec,
                                                .incarnations = servers,
                                                .job = {request.job(), request.generation()},
                                                .container = request.container(),
                                                .credentials = context_.credentials,
                                                .caller_task = context_.task.to_string(),
                                                .faults = context_.faults,
                                                .retry = kServerRetry,
                                                .shared_memory = !request.no_shared_memory()},
                                               std::min(deadline, after(kConnectTime))));
    const int at_once =
        std::clamp<int64_t>(request.updates_at_once(), int64_t{1}, int64_t{kMostUpdatesAtOnce});
    const Time now = Clock::real().now();
    MutexLock lock(mutex_);
    auto host = std::make_shared<ClosureHost>(
        internal::ClosureHostOptions{request.coordinator(), context_.task.to_string(), servers,
                                     at_once, context_.devices},
        std::move(client), pools().ending);
    std::erase_if(hosts_, [&](const auto& known) {
      return known.second.host.use_count() == 1 && now - known.second.used > kForgottenAfter;
    });
    if (hosts_.size() >= kMostCoordinators) {
      return make_status(ErrorCode::kResourceExhausted,
                         absl::StrCat("this worker already has ", hosts_.size(),
                                      " coordinators, the maximum; end some of their programs"));
    }
    hosts_[request.coordinator()] = {std::move(host), now};
    return make_message(response);
  }

  void register_function(const RegisterFunctionRequest& request, ServerCall call) {
    auto host = host_of(request.coordinator());
    if (!host.ok()) return call.respond(host.status());
    MutexLock lock(mutex_);
    pools().setup.submit([host = *host, request, call = std::move(call)]() mutable {
      call.respond(register_now(*host, request, std::move(call.request().tensors)));
    });
  }

  static absl::StatusOr<Message> register_now(ClosureHost& host,
                                              const RegisterFunctionRequest& request,
                                              std::vector<at::Tensor> constants) {
    for (uint32_t dropped : request.dropped()) host.drop_function(dropped);
    if (!request.native().empty()) {
      TRIREME_RETURN_IF_ERROR(host.add_native_function(request.function(), request.native()));
      return make_message(RegisterFunctionResponse());
    }
    TRIREME_ASSIGN_OR_RETURN(auto graph,
                             internal::assemble_graph(request.def(), std::move(constants)));
    if (request.variables_size() != graph->def.variables_size()) {
      return make_status(ErrorCode::kInvalidArgument,
                         "the function names a different number of variables than its graph");
    }
    std::vector<std::optional<VariableLayout>> layouts;
    for (int i = 0; i < request.variables_size(); ++i) {
      TRIREME_ASSIGN_OR_RETURN(
          layouts.emplace_back(),
          layout_of(request.variables(i), graph->def.variables(i).type(), host.servers()));
    }
    std::vector<internal::ClosureDraw> draws;
    for (const FunctionDraw& asked : request.draws()) {
      internal::ClosureDraw& draw = draws.emplace_back();
      draw.first_input = asked.first_input();
      for (const ElementShape& element : asked.elements()) {
        TRIREME_ASSIGN_OR_RETURN(draw.elements.emplace_back(), internal::parse_spec(element));
      }
    }
    TRIREME_RETURN_IF_ERROR(
        host.add_function(request.function(), std::move(graph), layouts, std::move(draws)));
    return make_message(RegisterFunctionResponse());
  }

  void create(const CreateResourceRequest& request, ServerCall call) {
    auto host = host_of(request.coordinator());
    if (!host.ok()) return call.respond(host.status());
    for (uint64_t dropped : request.dropped()) (*host)->drop_resource(dropped);
    MutexLock lock(mutex_);
    pools().setup.submit([this, host = *host, request = request, call = std::move(call)]() mutable {
      call.respond(create_now(*host, std::move(request), std::move(call.request().tensors)));
    });
  }

  absl::StatusOr<Message> create_now(ClosureHost& host, CreateResourceRequest request,
                                     std::vector<at::Tensor> tensors) const {
    TRIREME_RETURN_IF_ERROR(
        internal::resolve_files(*request.mutable_dataset(), context_.data_root));
    TRIREME_ASSIGN_OR_RETURN(
        const Dataset dataset,
        internal::dataset_from({std::move(*request.mutable_dataset()), std::move(tensors)}));
    TRIREME_ASSIGN_OR_RETURN(
        auto reader,
        internal::ResourceReader::create(internal::Access<Dataset>::last(dataset), request.seed(),
                                         request.in_ranges(), context_.metrics));
    TRIREME_RETURN_IF_ERROR(host.add_resource(request.resource(), std::move(reader)));
    return make_message(CreateResourceResponse());
  }

  void run(const RunClosuresRequest& request, ServerCall call) {
    auto host = host_of(request.coordinator());
    if (!host.ok()) return call.respond(host.status());
    internal::ReceivedBatch batch{.closures = {},
                                  .watermark = request.watermark(),
                                  .number = request.batch(),
                                  .after = request.after()};
    internal::TensorReader reader(std::move(call.request().tensors));
    for (const ClosureRequest& asked : request.closures()) {
      auto tensors = reader.next(asked.tensors(), asked.undefined());
      if (!tensors.ok()) return call.respond(tensors.status());
      const auto first_sum = tensors->end() - std::min<size_t>(asked.sums(), tensors->size());
      std::vector<at::Tensor> sums(first_sum, tensors->end());
      tensors->erase(first_sum, tensors->end());
      std::vector<uint64_t> resources;
      std::vector<std::vector<internal::NumberSpan>> numbers;
      for (const ClosureRequest::Draw& draw : asked.draws()) {
        resources.push_back(draw.resource());
        auto spans = spans_of(draw);
        if (!spans.ok()) return call.respond(spans.status());
        numbers.push_back(*std::move(spans));
      }
      const uint32_t repeat = std::clamp<uint32_t>(asked.repeat(), 1, internal::kMostRepetitions);
      batch.closures.push_back({.sequence = asked.sequence(),
                                .function = asked.function(),
                                .seed = asked.seed(),
                                .step = asked.step(),
                                .tensors = *std::move(tensors),
                                .resources = std::move(resources),
                                .numbers = std::move(numbers),
                                .variants = {asked.variants().begin(), asked.variants().end()},
                                .repeat = repeat,
                                .may_have_pushed = asked.may_have_pushed(),
                                .sum_results = asked.sum_results(),
                                .runs_done = std::min(asked.runs_done(), repeat - 1),
                                .sums = std::move(sums)});
    }
    auto answer = std::make_shared<BatchAnswer>(std::move(call));
    const bool quick = (*host)->is_quick(batch.closures);
    auto work = [host = *std::move(host), batch = std::move(batch), answer]() mutable {
      host->run(
          std::move(batch), answer->stop(),
          [answer](absl::StatusOr<std::vector<RunResult>> answers) { answer->respond(answers); });
    };
    if (quick) return work();
    MutexLock lock(mutex_);
    pools().closures.submit(std::move(work));
  }

  void cancel(const CancelClosuresRequest& request, ServerCall call) {
    const auto host = host_of(request.coordinator());
    if (host.ok() && request.before_push()) {
      (*host)->cancel_unpushed();
    } else if (host.ok()) {
      (*host)->cancel_below(request.below());
    }
    call.respond(make_message(CancelClosuresResponse()));
  }

  void disconnect(const DisconnectCoordinatorRequest& request, ServerCall call) {
    std::shared_ptr<ClosureHost> host;
    {
      MutexLock lock(mutex_);
      if (const auto found = hosts_.find(request.coordinator()); found != hosts_.end()) {
        host = std::move(found->second.host);
        hosts_.erase(found);
      }
    }
    if (host != nullptr) host->cancel_below(std::numeric_limits<uint64_t>::max());
    call.respond(make_message(DisconnectCoordinatorResponse()));
  }

  TaskContext& context_;
  Mutex mutex_;
  std::unique_ptr<Pools> pools_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Known> hosts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Service> make_closure_service(TaskContext& context) {
  return std::make_unique<ClosureService>(context);
}

}  // namespace trireme
