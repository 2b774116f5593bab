// How replicas run in one graph. The body of strategy.run() is executed once for each replica on
// one thread. During a capture the replicas become independent parts of the graph, which a replay
// may run in branches.
//
// A change that a replica asks for (assign(), minimize()) is only noted, by its position in the
// order of the replica's calls. Replica 0 fixes the list: which object is changed, and by which
// call. Each later replica must make the same calls in the same order and adds its values. After
// the last replica each change is made once, with its values combined. Calls are matched by
// position, not by name, since a replica may change one variable more than once.
//
// Each body runs in a fiber. Without all_reduce() it runs from its beginning to its end, and the
// replicas run one after the other. all_reduce() is a call in the list too, at which the body
// pauses. When all replicas have come to it, their values are combined outside of all replicas, and
// the bodies go on, in order, to the next all_reduce() or to their end. While a body is paused, the
// thread has the state that it had before the first replica (OutsideOfReplicas).
//
// If a replica throws, no other goes on. The fibers that are paused are unwound when they are
// destroyed.
#include "trireme/function/replicas.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/operator_hook.h"
#include "trireme/capture/replica_scope.h"
#include "trireme/capture/scope.h"
#include "trireme/capture/scope_stack.h"
#include "trireme/function/fiber.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace internal {
namespace {

// A call of a replica that needs the values of all replicas.
struct ReplicaCall {
  enum class Kind { kChange, kAllReduce };
  Kind kind;
  DeferredChange change;  // without `object` and `make` for an all_reduce()
};

// One call with the values of all replicas so far.
struct CollectedCall {
  ReplicaCall first;  // the call as replica 0 made it, without its values
  std::vector<std::vector<at::Tensor>> by_replica;
  at::Tensor reduced;  // result of an all_reduce()
};

struct ReplicaRun;

// One replica of a run.
struct Replica {
  Replica(ReplicaRun& its_run, int number, const std::function<void(int)>& body);
  void run_body(const std::function<void(int)>& body);

  ReplicaRun& run;
  const int id;
  size_t calls = 0;  // number of calls that it has made
  Fiber fiber;
};

// State of one for_each_replica().
struct ReplicaRun {
  explicit ReplicaRun(WorkerGroup* group) : workers(group) {}

  WorkerGroup* const workers;  // null for none
  // State of the thread outside of all replicas.
  OperatorHook* const hook = current_hook();
  const at::ThreadLocalState libtorch;
  const size_t device_scopes = device_scope_count();
  const size_t scopes = scope_stack().size();

  std::deque<CollectedCall> calls;  // references to its elements stay valid
  std::optional<Error> differs;     // set once a replica has made another call than replica 0
  std::deque<Replica> replicas;     // destroyed first, since their bodies use the members above
};

thread_local Replica* current = nullptr;

class CurrentReplica {
 public:
  explicit CurrentReplica(Replica* replica) { current = replica; }
  ~CurrentReplica() { current = nullptr; }
};

// Takes the thread out of the current replica while it lives. Puts aside what code of the replica
// may have set on the thread: the operator hook, LibTorch's state, and the scopes of devices and
// names. Scopes of strategies and the dtype of autocast stay: to combine values, neither matters.
class OutsideOfReplicas {
 public:
  OutsideOfReplicas()
      : replica_(*std::exchange(current, nullptr)),
        hook_(replica_.run.hook),
        libtorch_(replica_.run.libtorch),
        device_scopes_(replica_.run.device_scopes),
        scopes_(replica_.run.scopes),
        no_replica_(-1) {}
  ~OutsideOfReplicas() { current = &replica_; }

  OutsideOfReplicas(const OutsideOfReplicas&) = delete;
  OutsideOfReplicas& operator=(const OutsideOfReplicas&) = delete;

 private:
  Replica& replica_;
  const HookScope hook_;
  const at::ThreadLocalStateGuard libtorch_;
  const SuspendDeviceScopes device_scopes_;
  const SuspendScopes scopes_;
  const ReplicaScope no_replica_;
};

bool is_all_reduce(const ReplicaCall* call) {
  return call != nullptr && call->kind == ReplicaCall::Kind::kAllReduce;
}

std::string describe(const ReplicaCall* call) {
  if (call == nullptr) return "nothing";
  return absl::StrCat(call->change.call, "() of ", call->change.name);
}

// Returns the error for a replica whose call differs from that of replica 0. Either is null if that
// replica makes no call at this position.
Error calls_differ(int replica, const ReplicaCall* its, const ReplicaCall* first) {
  const std::string function = captured_function();
  const bool reduces = is_all_reduce(its) || is_all_reduce(first);
  return Error(
      ErrorCode::kFailedPrecondition,
      absl::StrCat(function.empty() ? "" : absl::StrCat("in function '", function, "' "),
                   "replica ", replica, " calls ", describe(its), " where replica 0 calls ",
                   describe(first),
                   reduces ? ". all_reduce() combines the values of all replicas, so all replicas "
                             "must make the same calls in the same order, with values of the same "
                             "shape and dtype, whatever tr::replica_id() and the data are"
                           : ". A change is made once for all replicas, so all replicas must make "
                             "the same changes in the same order, whatever tr::replica_id() and "
                             "the data are"),
      {"", reduces ? "" : (its != nullptr ? its : first)->change.name});
}

// Adds a call of the current replica. Throws Error if replica 0 has made another one.
CollectedCall& collect(ReplicaCall call) {
  ReplicaRun& run = current->run;
  const size_t index = current->calls++;
  if (current->id == 0) {
    run.calls.push_back({std::move(call), {}, {}});
    run.calls.back().by_replica.push_back(std::move(run.calls.back().first.change.values));
    return run.calls.back();
  }
  const ReplicaCall* first = index < run.calls.size() ? &run.calls[index].first : nullptr;
  if (first == nullptr || call.kind != first->kind || call.change.object != first->change.object ||
      call.change.call != first->change.call || call.change.name != first->change.name) {
    run.differs = calls_differ(current->id, &call, first);
    throw *run.differs;
  }
  run.calls[index].by_replica.push_back(std::move(call.change.values));
  return run.calls[index];
}

Replica::Replica(ReplicaRun& its_run, int number, const std::function<void(int)>& body)
    : run(its_run), id(number), fiber([this, &body] { run_body(body); }) {}

void Replica::run_body(const std::function<void(int)>& body) {
  const CurrentReplica in(this);
  const ReplicaScope replica(id);
  const Scope scope(absl::StrCat("replica_", id));
  body(id);
  if (calls < run.calls.size()) throw calls_differ(id, nullptr, &run.calls[calls].first);
}

// Combines the values of the all_reduce() at which all replicas are.
void combine(CollectedCall& call, WorkerGroup* workers) {
  const at::NoGradGuard no_gradients;
  const Scope scope("all_reduce");
  call.reduced =
      aggregate(call.first.change.aggregation, std::exchange(call.by_replica, {}), workers).front();
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& value, size_t replica) {
  if (!value.defined()) return sum;
  if (!sum.defined()) return value;
  if (value.sizes() != sum.sizes()) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("replica ", replica, " returned a tensor of shape ",
                             format_shape(value.sizes()), ", but the replicas before it returned ",
                             format_shape(sum.sizes()),
                             "; results of replicas are combined element by element, so their "
                             "shapes must agree"));
  }
  // Not in place, since a write would keep branches of the graph from running in parallel. LibTorch
  // adds a sparse tensor to a dense one, but not a dense one to a sparse one.
  return sum.is_sparse() ? value.add(sum) : sum.add(value);
}

}  // namespace

void for_each_replica(const ReplicaSet& replicas, const std::function<void(int)>& body) {
  if (replicas.total() == 1) return body(0);
  if (current != nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("strategy.run() was called inside replica ", current->id,
                             " of another strategy.run(); replicas cannot be nested"));
  }
  ReplicaRun run(replicas.workers);
  for (int id = 0; id < replicas.here; ++id) run.replicas.emplace_back(run, id, body);
  while (true) {
    for (Replica& replica : run.replicas) {
      replica.fiber.resume();
      // The body may have caught the error.
      if (run.differs) throw *run.differs;
    }
    if (run.replicas.front().fiber.ended()) break;
    combine(run.calls.back(), run.workers);
  }
  for (const CollectedCall& call : run.calls) {
    if (is_all_reduce(&call.first)) continue;
    const DeferredChange& change = call.first.change;
    change.make(aggregate(change.aggregation, call.by_replica, run.workers, change.are_gradients));
  }
}

bool in_replica() {
  return current != nullptr;
}

void defer(DeferredChange change) {
  collect({ReplicaCall::Kind::kChange, std::move(change)});
}

at::Tensor all_reduce_replicas(Aggregation aggregation, const at::Tensor& value) {
  if (!value.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                "all_reduce() was called with an undefined tensor; give it a tensor with the same "
                "shape and dtype in every replica");
  }
  // The user's operators obey device scopes, and the copy of a result is none of them.
  const SuspendDeviceCheck no_device_check;
  if (current == nullptr) return value.detach();
  if (torch::autograd::get_current_graph_task_id() != -1) {
    throw Error(ErrorCode::kFailedPrecondition,
                "all_reduce() was called in a hook of a backward pass, which cannot wait for the "
                "other replicas; call it after backward()");
  }
  Replica& replica = *current;
  const bool sums = aggregation == Aggregation::kSum;
  const CollectedCall& call =
      collect({ReplicaCall::Kind::kAllReduce,
               {.object = nullptr,
                .name = absl::StrCat("a ", format_shape(value.sizes()), " tensor of ",
                                     dtype_name(value.scalar_type()), " with ReduceOp::k",
                                     sums ? "Sum" : "Mean"),
                .call = "all_reduce",
                .aggregation = aggregation,
                .values = {value},
                .make = nullptr}});
  {
    const OutsideOfReplicas outside;
    replica.fiber.pause();
  }
  // A copy, since a replica may write to it.
  return call.reduced.clone();
}

std::vector<at::Tensor> aggregate(Aggregation aggregation,
                                  const std::vector<std::vector<at::Tensor>>& by_replica,
                                  WorkerGroup* workers, bool are_gradients) {
  std::vector<at::Tensor> result = by_replica[0];
  const bool only_first = aggregation == Aggregation::kOnlyFirstReplica;
  const size_t replicas = only_first ? 1 : by_replica.size();
  for (size_t replica = 1; replica < replicas; ++replica) {
    const std::vector<at::Tensor>& values = by_replica[replica];
    if (values.size() != result.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("replica ", replica, " returned ", values.size(),
                               " tensors, but replica 0 returned ", result.size()));
    }
    for (size_t i = 0; i < result.size(); ++i) result[i] = sum_of(result[i], values[i], replica);
  }
  size_t total = replicas;
  if (workers != nullptr) {
    total *= only_first ? 1 : static_cast<size_t>(workers->workers());
    const auto combine_over = only_first
                                  ? first_of_workers
                                  : (are_gradients ? sum_gradients_over_workers : sum_over_workers);
    for (at::Tensor& tensor : result) {
      if (tensor.defined()) tensor = combine_over(*workers, tensor);
    }
  }
  if (aggregation != Aggregation::kMean || total == 1) return result;
  for (at::Tensor& tensor : result) {
    if (tensor.defined()) tensor = tensor.div(static_cast<double>(total));
  }
  return result;
}

}  // namespace internal

int replica_id() {
  if (internal::current == nullptr) return 0;
  const internal::ReplicaRun& run = internal::current->run;
  const int before =
      run.workers == nullptr ? 0 : run.workers->worker() * static_cast<int>(run.replicas.size());
  return before + internal::current->id;
}

}  // namespace trireme
