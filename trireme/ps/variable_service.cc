#include "trireme/ps/variable_service.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/executor.h"
#include "trireme/base/machine.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/ps/kernels.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/parallel.h"
#include "trireme/ps/push_records.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/tensor/buffer_pool.h"
#include "trireme/tensor/codec.h"
#include "trireme/tensor/dtype.h"

namespace trireme {
namespace {

using internal::Packing;
using internal::TensorShape;
using Variables = std::vector<std::shared_ptr<StoredVariable>>;

constexpr Roles kTrainers = {Role::kChief, Role::kWorker, Role::kClient};
constexpr uint64_t kSnapshotBytes = 256 << 20;  // limit for snapshots that are kept
// Limit for the tensors of one call; the codec's limit for a message is the same.
constexpr uint64_t kMostBytes = uint64_t{64} << 30;

absl::Status malformed(const std::string& what) {
  return make_status(ErrorCode::kInvalidArgument, absl::StrCat("malformed request: ", what));
}

// Rejects sizes that are negative or whose product overflows: a peer may send anything.
absl::StatusOr<TensorShape> to_shape(const VariableShape& proto) {
  TRIREME_ASSIGN_OR_RETURN(const c10::ScalarType dtype,
                           dtype_from_wire(static_cast<uint8_t>(proto.dtype())));
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : proto.sizes()) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<uint64_t>(size, 1), &bytes) ||
        bytes > uint64_t{1} << 50) {
      return malformed(absl::StrCat("variable '", proto.name(), "' with a size of ", size));
    }
  }
  return TensorShape{dtype, {proto.sizes().begin(), proto.sizes().end()}};
}

void set_shape(const StoredVariable& variable, VariableShape& proto) {
  proto.set_name(variable.name);
  proto.set_dtype(*dtype_to_wire(variable.tensor.scalar_type()));
  proto.mutable_sizes()->Add(variable.tensor.sizes().begin(), variable.tensor.sizes().end());
}

uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// Decodes the `rows` field of pulls and pushes: the number of rows of each variable, or nullopt for
// the whole variable. A message of `carried` bytes cannot have more ids than fit into them.
template <typename Field>
absl::StatusOr<std::vector<std::optional<int64_t>>> row_counts(const Field& field, size_t variables,
                                                               uint64_t carried) {
  std::vector<std::optional<int64_t>> counts(variables);
  if (field.empty()) return counts;
  if (static_cast<size_t>(field.size()) != variables) {
    return malformed(absl::StrCat(field.size(), " row counts for ", variables, " variables"));
  }
  for (size_t i = 0; i < variables; ++i) {
    if (field[i] == 0) continue;
    if (field[i] - 1 > carried / sizeof(int64_t)) {
      return malformed(absl::StrCat("it names ", field[i] - 1, " rows, but carries fewer ids"));
    }
    counts[i] = field[i] - 1;
  }
  return counts;
}

TensorShape ids_of(int64_t count) {
  return {c10::kLong, {count}};
}

// Returns the shape of `rows` rows of a variable, or of the whole variable.
absl::StatusOr<TensorShape> shape_of(const StoredVariable& variable, std::optional<int64_t> rows) {
  TensorShape shape = TensorShape::of(variable.tensor);
  if (!rows) return shape;
  if (shape.sizes.empty()) {
    return make_status(ErrorCode::kInvalidArgument, "a scalar has no rows", variable.object());
  }
  shape.sizes[0] = 1;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(shape.bytes(), static_cast<uint64_t>(*rows), &bytes) ||
      bytes > kMostBytes) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("rejected: ", *rows, " of its rows exceed the limit of ",
                                    kMostBytes, " bytes for a call; use several calls"),
                       variable.object());
  }
  shape.sizes[0] = *rows;
  return shape;
}

// Returns a tensor with the same memory that keeps `held` alive as long as it is in use.
at::Tensor tie_lifetime(const at::Tensor& tensor, std::shared_ptr<void> held) {
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), [tensor, held = std::move(held)](void*) {},
      tensor.options());
}

class VariableService final : public Service {
 public:
  VariableService(TaskContext& context, VariableStoreOptions options)
      : store_(std::make_shared<VariableStore>(options)),
        pushes_decided_(context.metrics.counter("ps/pushes_already_decided")),
        pushes_(std::make_shared<ByteBudget>(options.push_bytes,
                                             context.metrics.counter("ps/pushes_held_back"))),
        pulls_(std::make_shared<ByteBudget>(options.pull_bytes,
                                            context.metrics.counter("ps/pulls_held_back"))),
        pool_("trireme-ps",
              std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 8)) {
    context.variables = store_;
  }

  std::vector<Method> methods() override {
    return {
        on_pool(kCreateVariables, kTrainers, Repeats::kHarmless, &VariableService::create),
        quick<LookupVariablesRequest, LookupVariablesResponse>(
            kLookupVariables, Roles::all(), Repeats::kHarmless, &VariableService::lookup),
        on_pool(kPullVariables, Roles::all(), Repeats::kHarmless, &VariableService::pull),
        update_method(kPushVariables, Repeats::kHarmless, &VariableService::push),
        update_method(kWriteVariables, Repeats::kAnsweredOnce, &VariableService::write),
        quick<DeleteVariablesRequest, DeleteVariablesResponse>(
            kDeleteVariables, kTrainers, Repeats::kAnsweredOnce, &VariableService::remove),
        quick<DropContainerRequest, DropContainerResponse>(
            kDropContainer, kTrainers, Repeats::kAnsweredOnce, &VariableService::drop_container),
        on_pool(kSetOptimizer, kTrainers, Repeats::kHarmless, &VariableService::set_optimizer),
        quick<BeginWriterRequest, BeginWriterResponse>(
            kBeginWriter, kTrainers, Repeats::kAnsweredOnce, &VariableService::begin_writer),
        on_pool(kEndWriter, kTrainers, Repeats::kHarmless, &VariableService::end_writer),
        on_pool(kListVariables, Roles::all(), Repeats::kHarmless, &VariableService::list),
    };
  }

 private:
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
    method.scatters = can_apply_pieces;
    return method;
  }

  // Returns true if a push only adds to or assigns whole variables. Rows and gradients need
  // contiguous tensors.
  static bool can_apply_pieces(const std::string& body) {
    PushRequest request;
    if (!request.ParseFromString(body)) return false;
    const auto is_zero = [](uint64_t rows) { return rows == 0; };
    const auto is_plain = [](int kind) { return kind == UPDATE_ADD || kind == UPDATE_ASSIGN; };
    return std::all_of(request.rows().begin(), request.rows().end(), is_zero) &&
           std::all_of(request.kinds().begin(), request.kinds().end(), is_plain);
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
    CreateVariablesResponse response;
    auto content = contents.begin();
    for (int i = 0; i < request.variables_size(); ++i) {
      const auto& variable = request.variables(i);
      TRIREME_ASSIGN_OR_RETURN(const VariableStore::Created made,
                               store_->make(request.container(), variable.shape().name(), shapes[i],
                                            [&](at::Tensor& tensor) {
                                              variable.has_fill() ? tensor.fill_(variable.fill())
                                                                  : tensor.copy_(*content);
                                            }));
      if (!variable.has_fill()) ++content;
      response.add_handles(made.variable->handle);
      response.add_created(made.is_new);
    }
    return make_message(response);
  }

  absl::StatusOr<LookupVariablesResponse> lookup(const LookupVariablesRequest& request) {
    LookupVariablesResponse response;
    for (const std::string& name : request.names()) {
      TRIREME_ASSIGN_OR_RETURN(const auto found, store_->lookup(request.container(), name));
      response.add_handles(found->handle);
      set_shape(*found, *response.add_shapes());
    }
    return response;
  }

  struct Pull {
    explicit Pull(ServerCall call) : call(std::move(call)) {}

    ServerCall call;
    Variables variables;
    std::vector<at::Tensor> ids;  // row ids of each variable; undefined for the whole variable
    std::optional<Packing> packing;
    std::vector<at::Tensor> answer;
    std::shared_ptr<void> lease;  // returns the pull's share of the budget when it is destroyed
  };

  void pull(ServerCall call) {
    auto pull = std::make_shared<Pull>(std::move(call));
    const absl::Status status = prepare(*pull);
    if (!status.ok()) return pull->call.respond(status);
    if (pull->packing->bytes() <= kFrameBytes) return read_all(pull);
    pulls_->ask(pull->packing->bytes(), [this, pull] {
      pull->lease = std::shared_ptr<void>(nullptr, [pulls = pulls_, bytes = pull->packing->bytes()](
                                                       void*) { pulls->leave(bytes); });
      pool_.submit([this, pull] { read_all(pull); });
    });
  }

  void read_all(const std::shared_ptr<Pull>& pull) {
    std::vector<size_t> bytes;
    bytes.reserve(pull->variables.size());
    for (const TensorShape& shape : pull->packing->shapes()) bytes.push_back(shape.bytes());
    internal::for_each_parallel(
        pool_, bytes, [this, pull](size_t i) { read(*pull, i); },
        [pull] {
          if (pull->lease) {  // held until the last byte was sent
            for (at::Tensor& tensor : pull->answer) tensor = tie_lifetime(tensor, pull->lease);
            pull->lease.reset();
          }
          pull->call.respond(make_message(PullResponse(), std::move(pull->answer)));
        });
  }

  void read(Pull& pull, size_t i) {
    const auto [place, offset] = pull.packing->place(i);
    StoredVariable& variable = *pull.variables[i];
    if (pull.packing->is_large(i) && !pull.ids[i].defined()) {
      pull.answer[place] = variable.snapshot(snapshots_);
      return;
    }
    if (pull.packing->is_large(i)) {
      const TensorShape& shape = pull.packing->shapes()[i];
      pull.answer[place] = BufferPool::shared().empty(shape.sizes, shape.dtype);
    } else if (pull.packing->shapes()[i].bytes() == 0) {
      return;  // there may be no block for it
    }
    variable.read(pull.ids[i], static_cast<char*>(pull.answer[place].data_ptr()) + offset);
  }

  absl::Status prepare(Pull& pull) {
    const Message& message = pull.call.request();
    TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<PullRequest>(message));
    TRIREME_ASSIGN_OR_RETURN(pull.variables, store_->lookup(request.handles()));
    const size_t count = pull.variables.size();
    TRIREME_ASSIGN_OR_RETURN(const auto rows,
                             row_counts(request.rows(), count, bytes_of(message.tensors)));
    std::vector<TensorShape> shapes, sent;
    shapes.reserve(count);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      TRIREME_ASSIGN_OR_RETURN(shapes.emplace_back(), shape_of(*pull.variables[i], rows[i]));
      if (rows[i]) sent.push_back(ids_of(*rows[i]));
      bytes += shapes.back().bytes();
      if (bytes > kMostBytes) {
        return make_status(ErrorCode::kResourceExhausted,
                           absl::StrCat("rejected: the pull exceeds the limit of ", kMostBytes,
                                        " bytes; pull the variables in several calls"));
      }
    }
    TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> ids,
                             Packing(std::move(sent)).unpack(message.tensors));
    pull.ids.resize(count);
    for (size_t i = 0, next = 0; i < count; ++i) {
      if (!rows[i]) continue;
      pull.ids[i] = ids[next++];
      TRIREME_RETURN_IF_ERROR(pull.variables[i]->check_ids(pull.ids[i]));
    }
    pull.packing.emplace(std::move(shapes));
    TRIREME_ASSIGN_OR_RETURN(pull.answer, try_call([&] { return pull.packing->allocate_block(); }));
    return absl::OkStatus();
  }

  struct Push {
    explicit Push(ServerCall call) : call(std::move(call)) {}

    ServerCall call;
    Variables variables;
    std::vector<Update> updates;
    std::optional<StoredVariable::Push> id;
    std::optional<double> lr;
    Mutex mutex;
    absl::Status status ABSL_GUARDED_BY(mutex);  // first error of an update
  };

  void push(ServerCall call) { change(std::move(call), /*once=*/true); }
  void write(ServerCall call) { change(std::move(call), /*once=*/false); }

  void change(ServerCall call, bool once) {
    auto push = std::make_shared<Push>(std::move(call));
    const absl::Status status = prepare(*push, once);
    if (!status.ok()) {
      if (absl::IsAborted(status)) pushes_decided_.add();
      push->updates.clear();
      return push->call.respond(status);
    }
    std::vector<size_t> bytes;
    bytes.reserve(push->updates.size());
    for (const Update& update : push->updates) bytes.push_back(update.values.nbytes());
    internal::for_each_parallel(
        pool_, bytes,
        [push](size_t i) {
          const absl::Status done = push->variables[i]->apply(push->updates[i], push->id, push->lr);
          if (done.ok()) return;
          MutexLock lock(push->mutex);
          push->status.Update(done);
        },
        [push] {
          absl::Status status;
          {
            MutexLock lock(push->mutex);
            status = push->status;
          }
          push->updates.clear();
          status.ok() ? push->call.respond(make_message(PushResponse()))
                      : push->call.respond(status);
        });
  }

  absl::Status prepare(Push& push, bool once) {
    Message& message = push.call.request();
    TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<PushRequest>(message));
    if (once) {
      const PushId id{request.writer(), request.sequence(), request.round()};
      TRIREME_ASSIGN_OR_RETURN(auto writer, writers_.admit(id, request.watermark()));
      push.id = {std::move(writer), id};
    }
    if (request.has_lr()) push.lr = request.lr();
    TRIREME_ASSIGN_OR_RETURN(push.variables, store_->lookup(request.handles()));
    const size_t count = push.variables.size();
    if (static_cast<size_t>(request.kinds_size()) != count) {
      return malformed(absl::StrCat(request.kinds_size(), " kinds for ", count, " variables"));
    }
    TRIREME_ASSIGN_OR_RETURN(const auto rows,
                             row_counts(request.rows(), count, bytes_of(message.tensors)));
    std::vector<TensorShape> sent;
    sent.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (rows[i]) sent.push_back(ids_of(*rows[i]));
      TRIREME_ASSIGN_OR_RETURN(sent.emplace_back(), shape_of(*push.variables[i], rows[i]));
    }
    std::vector<ScatteredTensor>& scattered = push.call.scattered();
    const Packing packing(std::move(sent));
    for (size_t i = 0; i < scattered.size(); ++i) {
      at::Tensor& tensor = message.tensors[i];
      const bool is_block = i == 0 && packing.has_block();
      if (!tensor.is_meta() || (!is_block && internal::adds_pieces(tensor.scalar_type()))) continue;
      TRIREME_ASSIGN_OR_RETURN(tensor, try_call([&] {
                                 return scattered[i].gather(tensor.sizes(), tensor.scalar_type());
                               }));
    }
    TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> tensors,
                             packing.unpack(message.tensors));
    message.tensors.clear();
    push.updates.reserve(count);
    for (size_t i = 0, next = 0; i < count; ++i) {
      if (request.kinds(i) < UPDATE_ADD || request.kinds(i) > UPDATE_GRADIENT) {
        return malformed(absl::StrCat("an update of kind ", request.kinds(i)));
      }
      Update& update = push.updates.emplace_back();
      update.kind = static_cast<Update::Kind>(request.kinds(i));
      if (rows[i]) update.ids = tensors[next++];
      update.values = tensors[next];
      if (update.values.is_meta()) {
        update.scattered = std::move(scattered[packing.place(next).tensor]);
      }
      ++next;
      TRIREME_RETURN_IF_ERROR(push.variables[i]->check(update));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DeleteVariablesResponse> remove(const DeleteVariablesRequest& request) {
    for (const std::string& name : request.names()) {
      TRIREME_RETURN_IF_ERROR(store_->remove(request.container(), name));
    }
    return DeleteVariablesResponse();
  }

  absl::StatusOr<DropContainerResponse> drop_container(const DropContainerRequest& request) {
    store_->drop_container(request.container());
    return DropContainerResponse();
  }

  void set_optimizer(ServerCall call) {
    call.respond([&]() -> absl::StatusOr<Message> {
      TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<SetOptimizerRequest>(call.request()));
      TRIREME_ASSIGN_OR_RETURN(const Variables variables, store_->lookup(request.handles()));
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

  absl::StatusOr<BeginWriterResponse> begin_writer(const BeginWriterRequest& request) {
    TRIREME_RETURN_IF_ERROR(writers_.begin(request.writer()));
    return BeginWriterResponse();
  }

  void end_writer(ServerCall call) {
    const auto request = parse_body<EndWriterRequest>(call.request());
    if (!request.ok()) return call.respond(request.status());
    if (writers_.end(request->writer())) {
      for (const auto& variable : store_->list()) variable->forget_pushes();
    }
    call.respond(make_message(EndWriterResponse()));
  }

  void list(ServerCall call) {
    ListVariablesResponse response;
    uint64_t record_bytes = 0;
    for (const auto& variable : store_->list()) {
      const StoredVariable::Stats stats = variable->stats();
      auto& entry = *response.add_variables();
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
  const std::shared_ptr<SnapshotBudget> snapshots_ =
      std::make_shared<SnapshotBudget>(kSnapshotBytes);
  Counter& pushes_decided_;
  const std::shared_ptr<ByteBudget> pushes_, pulls_;
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
