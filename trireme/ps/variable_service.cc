#include "trireme/ps/variable_service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/machine.h"
#include "trireme/base/status.h"
#include "trireme/ps/call_slices.h"
#include "trireme/ps/fence.h"
#include "trireme/ps/hosted_jobs.h"
#include "trireme/ps/hosted_saves.h"
#include "trireme/ps/job_service.h"
#include "trireme/ps/lease_clock.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/pull_call.h"
#include "trireme/ps/push_call.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/save_service.h"
#include "trireme/ps/session_jobs.h"
#include "trireme/ps/variable_methods.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/tensor/dtype.h"

namespace trireme {
namespace {

using internal::Packing;
using internal::TensorShape;
using internal::to_scope;
using Variables = std::vector<std::shared_ptr<StoredVariable>>;

constexpr Roles kTrainers = {Role::kChief, Role::kWorker, Role::kClient};
constexpr uint64_t kSnapshotBytes = 256 << 20;  // limit for snapshots that are kept

// Rejects sizes that are negative or whose product overflows: a peer may send anything.
absl::StatusOr<TensorShape> to_shape(const VariableShape& proto) {
  TRIREME_ASSIGN_OR_RETURN(const c10::ScalarType dtype,
                           dtype_from_wire(static_cast<uint8_t>(proto.dtype())));
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : proto.sizes()) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<uint64_t>(size, 1), &bytes) ||
        bytes > uint64_t{1} << 50) {
      return internal::malformed_request(
          absl::StrCat("variable '", proto.name(), "' with a size of ", size));
    }
  }
  return TensorShape{dtype, {proto.sizes().begin(), proto.sizes().end()}};
}

void set_shape(const StoredVariable& variable, VariableShape& proto) {
  proto.set_name(variable.name);
  proto.set_dtype(*dtype_to_wire(variable.tensor.scalar_type()));
  proto.mutable_sizes()->Add(variable.tensor.sizes().begin(), variable.tensor.sizes().end());
}

class VariableService final : public Service {
 public:
  VariableService(TaskContext& context, VariableStoreOptions options)
      : store_(std::make_shared<VariableStore>(options)),
        writers_(*options.clock),
        pushes_(std::make_shared<ByteBudget>(options.push_bytes,
                                             context.metrics.counter("ps/pushes_held_back"))),
        pull_context_{*store_, &pool_,
                      std::make_shared<ByteBudget>(options.pull_bytes,
                                                   context.metrics.counter("ps/pulls_held_back")),
                      std::make_shared<SnapshotBudget>(kSnapshotBytes)},
        push_context_{*store_, writers_, &pool_,
                      context.metrics.counter("ps/pushes_already_decided"),
                      pull_context_.snapshots},
        pool_("trireme-ps",
              std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 8)) {
    context.variables = store_;
    context.join_job = [&context](const SessionJobOptions& job, Time deadline) {
      return join_session_job(context, job, deadline);
    };
    jobs_ = std::make_shared<internal::HostedJobs>(
        *store_, writers_, pool_,
        JobTableOptions{.clock = options.clock, .keep_after_lease = options.keep_after_lease});
    jobs_->start();
    saves_ = std::make_shared<internal::HostedSaves>(
        *store_, internal::HostedSavesOptions{.checkpoint_root = context.checkpoint_root,
                                              .files = options.files,
                                              .stuck_after = options.give_up_saves_after,
                                              .unasked_after = options.give_up_saves_after});
  }
  ~VariableService() override {
    jobs_->stop();
    saves_->stop();
  }

  std::vector<Method> methods() override {
    std::vector<Method> methods = internal::job_methods(*jobs_, pool_);
    for (Method& method : variable_methods()) methods.push_back(std::move(method));
    for (Method& method : internal::save_methods(*saves_)) methods.push_back(std::move(method));
    return methods;
  }

 private:
  std::vector<Method> variable_methods() {
    return {
        on_pool(kCreateVariables, kTrainers, Repeats::kHarmless, &VariableService::create),
        quick<LookupVariablesRequest, LookupVariablesResponse>(
            kLookupVariables, Roles::all(), Repeats::kHarmless, &VariableService::lookup),
        on_pool(kPullVariables, Roles::all(), Repeats::kHarmless, &VariableService::pull),
        update_method(kPushVariables, Repeats::kHarmless, &VariableService::push),
        on_pool(kDeleteVariables, kTrainers, Repeats::kHarmless, &VariableService::remove),
        on_pool(kDropContainer, kTrainers, Repeats::kAnsweredOnce,
                &VariableService::drop_container),
        on_pool(kSetOptimizer, kTrainers, Repeats::kHarmless, &VariableService::set_optimizer),
        on_pool(kBeginWriter, kTrainers, Repeats::kAnsweredOnce, &VariableService::begin_writer),
        on_pool(kEndWriter, kTrainers, Repeats::kHarmless, &VariableService::end_writer),
        on_pool(kListVariables, Roles::all(), Repeats::kHarmless, &VariableService::list),
    };
  }

  // Makes a method that runs on the pool: it takes long or may wait for the lock of a variable.
  Method on_pool(const char* name, Roles callers, Repeats repeats,
                 void (VariableService::*body)(ServerCall)) {
    return {name, callers, repeats, [this, body](ServerCall call) {
              pool_.submit([this, body, call = std::move(call)]() mutable {
                (this->*body)(std::move(call));
              });
            }};
  }

  Method update_method(const char* name, Repeats repeats,
                       void (VariableService::*body)(ServerCall)) {
    Method method = on_pool(name, kTrainers, repeats, body);
    method.intake = pushes_;
    method.scatters = internal::can_apply_pieces;
    method.shares = internal::changes_whole_variables;
    return method;
  }

  // Makes a method that runs on the thread that received the call.
  template <typename Request, typename Response>
  Method quick(const char* name, Roles callers, Repeats repeats,
               absl::StatusOr<Response> (VariableService::*body)(const Request&)) {
    return make_method<Request, Response>(
        name, callers, repeats, [this, body](const Request& request) -> absl::StatusOr<Response> {
          return (this->*body)(request);
        });
  }

  void create(ServerCall call) { call.respond(created(call.request())); }

  absl::StatusOr<Message> created(const Message& message) {
    TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<CreateVariablesRequest>(message));
    std::vector<TensorShape> shapes, sent;
    for (const auto& variable : request.variables()) {
      TRIREME_ASSIGN_OR_RETURN(shapes.emplace_back(), to_shape(variable.shape()));
      if (!variable.has_fill()) sent.push_back(shapes.back());
    }
    TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> contents,
                             Packing(sent).unpack(message.tensors));
    const VariableScope scope = to_scope(request.scope());
    CreateVariablesResponse response;
    auto content = contents.begin();
    for (int i = 0; i < request.variables_size(); ++i) {
      const auto& variable = request.variables(i);
      TRIREME_ASSIGN_OR_RETURN(const VariableStore::Created made,
                               store_->make(
                                   scope, variable.shape().name(), shapes[i],
                                   [&](at::Tensor& tensor) {
                                     variable.has_fill() ? tensor.fill_(variable.fill())
                                                         : tensor.copy_(*content);
                                   },
                                   request.member()));
      if (!variable.has_fill()) ++content;
      response.add_handles(made.variable->handle);
      response.add_created(made.is_new);
    }
    return make_message(response);
  }

  absl::StatusOr<LookupVariablesResponse> lookup(const LookupVariablesRequest& request) {
    const VariableScope scope = to_scope(request.scope());
    TRIREME_ASSIGN_OR_RETURN(
        auto all, store_->find_all(scope, {request.names().begin(), request.names().end()}));
    LookupVariablesResponse response;
    for (int i = 0; i < request.names_size(); ++i) {
      if (all[i].variable == nullptr && !request.allow_missing()) {
        TRIREME_ASSIGN_OR_RETURN(all[i].variable, store_->lookup(scope, request.names(i)));
      }
      response.add_handles(all[i].variable == nullptr ? 0 : all[i].variable->handle);
      response.add_generations(all[i].generation);
      response.add_members(all[i].member);
      VariableShape& shape = *response.add_shapes();
      if (all[i].variable != nullptr) set_shape(*all[i].variable, shape);
    }
    return response;
  }

  void pull(ServerCall call) { internal::serve_pull(pull_context_, std::move(call)); }
  void push(ServerCall call) { internal::serve_push(push_context_, std::move(call)); }

  void remove(ServerCall call) {
    call.respond([&]() -> absl::StatusOr<Message> {
      TRIREME_ASSIGN_OR_RETURN(const auto request,
                               parse_body<DeleteVariablesRequest>(call.request()));
      TRIREME_RETURN_IF_ERROR(store_->remove(to_scope(request.scope()),
                                             {request.handles().begin(), request.handles().end()}));
      return make_message(DeleteVariablesResponse());
    }());
  }

  void drop_container(ServerCall call) {
    call.respond([&]() -> absl::StatusOr<Message> {
      TRIREME_ASSIGN_OR_RETURN(const auto request,
                               parse_body<DropContainerRequest>(call.request()));
      const VariableScope scope = to_scope(request.scope());
      TRIREME_RETURN_IF_ERROR(store_->check(scope));
      store_->drop_container(scope);
      return make_message(DropContainerResponse());
    }());
  }

  void set_optimizer(ServerCall call) {
    call.respond([&]() -> absl::StatusOr<Message> {
      TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<SetOptimizerRequest>(call.request()));
      const std::vector<uint64_t> handles(request.handles().begin(), request.handles().end());
      TRIREME_ASSIGN_OR_RETURN(const Variables variables,
                               store_->lookup(to_scope(request.scope()), handles));
      TRIREME_ASSIGN_OR_RETURN(const auto rule, try_call([&] {
                                 return internal::make_rule(
                                     request.rule(),
                                     {request.options().begin(), request.options().end()});
                               }));
      for (const auto& variable : variables) {
        TRIREME_RETURN_IF_ERROR(store_->set_optimizer(*variable, rule));
      }
      return make_message(SetOptimizerResponse());
    }());
  }

  void begin_writer(ServerCall call) {
    call.respond([&]() -> absl::StatusOr<Message> {
      TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<BeginWriterRequest>(call.request()));
      const Time lease = request.job().empty()
                             ? Time::max()
                             : internal::requested_lease_end(*jobs_, request.lease_until_ms());
      TRIREME_RETURN_IF_ERROR(jobs_->begin_writer(
          request.writer(), {request.job(), request.generation(), request.member()}, lease));
      BeginWriterResponse response;
      response.set_clock_ms(to_clock_milliseconds(jobs_->now()));
      return make_message(response);
    }());
  }

  void end_writer(ServerCall call) {
    const auto request = parse_body<EndWriterRequest>(call.request());
    if (!request.ok()) return call.respond(request.status());
    if (writers_.end(request->writer(), "its writer has ended")) {
      for (const auto& variable : store_->list()) variable->forget_pushes();
      internal::wait_for_updates(*store_);
    }
    call.respond(make_message(EndWriterResponse()));
  }

  void list(ServerCall call) {
    ListVariablesResponse response;
    uint64_t record_bytes = 0;
    for (const auto& [job, variable] : store_->list_by_job()) {
      const StoredVariable::Stats stats = variable->stats();
      auto& entry = *response.add_variables();
      entry.set_job(job);
      entry.set_container(variable->container);
      set_shape(*variable, *entry.mutable_shape());
      entry.set_bytes(stats.bytes);
      entry.set_state_bytes(stats.state_bytes);
      entry.set_reads(stats.reads);
      entry.set_updates(stats.updates);
      entry.set_optimizer(stats.optimizer);
      entry.set_record_bytes(stats.record_bytes);
      record_bytes += stats.record_bytes;
    }
    response.set_bytes(store_->bytes());
    response.set_limit(store_->memory_limit());
    response.set_writers(writers_.size());
    response.set_record_bytes(record_bytes);
    call.respond(make_message(response));
  }

  const std::shared_ptr<VariableStore> store_;
  Writers writers_;
  std::shared_ptr<internal::HostedJobs> jobs_;
  std::shared_ptr<internal::HostedSaves> saves_;
  const std::shared_ptr<ByteBudget> pushes_;  // budget for pushes
  const internal::PullContext pull_context_;
  const internal::PushContext push_context_;
  ThreadPool pool_;  // last, so that its threads end before the rest is destroyed
};

}  // namespace

std::unique_ptr<Service> make_variable_service(TaskContext& context) {
  // The rest of the memory is for messages, snapshots and the process itself.
  return make_variable_service(context, {.memory_limit = physical_memory() / 10 * 8});
}

std::unique_ptr<Service> make_variable_service(TaskContext& context, VariableStoreOptions options) {
  return std::make_unique<VariableService>(context, options);
}

}  // namespace trireme
