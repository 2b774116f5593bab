// How replicas run in one graph. The body of strategy.run() is executed once for each replica, one
// after the other on one thread. During a capture the replicas become independent parts of the
// graph, which a replay may run in branches.
//
// A change that a replica asks for (assign(), minimize()) is only noted, by its position in the
// order of the replica's changes. Replica 0 fixes the list: which object is changed, and by which
// call. Each later replica must ask for the same changes in the same order and adds its values.
// After the last replica each change is made once, with its values combined. Changes are matched by
// position, not by name, since a replica may change one variable more than once.
#include "trireme/function/replicas.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/scope.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace internal {
namespace {

// One change with the values of all replicas so far.
struct CollectedChange {
  DeferredChange first;  // the change as replica 0 asked for it, without its values
  std::vector<std::vector<at::Tensor>> by_replica;
};

// State of one for_each_replica().
struct ReplicaRun {
  int replica = 0;  // replica that runs now
  size_t next = 0;  // number of changes that it has asked for
  std::vector<CollectedChange> changes;
};

thread_local ReplicaRun* current = nullptr;

class CurrentRun {
 public:
  explicit CurrentRun(ReplicaRun* run) { current = run; }
  ~CurrentRun() { current = nullptr; }
};

std::string describe(const DeferredChange* change) {
  return change == nullptr ? "nothing" : absl::StrCat(change->call, "() of ", change->name);
}

// Returns the error for a replica whose change differs from that of replica 0. Either is null if
// that replica makes no change at this position.
Error changes_differ(int replica, const DeferredChange* its, const DeferredChange* first) {
  const std::string function = captured_function();
  return Error(ErrorCode::kFailedPrecondition,
               absl::StrCat(function.empty() ? "" : absl::StrCat("in function '", function, "' "),
                            "replica ", replica, " calls ", describe(its),
                            " where replica 0 calls ", describe(first),
                            ". A change is made once for all replicas, so all replicas must make "
                            "the same changes in the same order, whatever tr::replica_id() and the "
                            "data are"),
               {"", (its != nullptr ? its : first)->name});
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

void for_each_replica(int replicas, const std::function<void(int)>& body) {
  if (replicas == 1) return body(0);
  if (current != nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("strategy.run() was called inside replica ", current->replica,
                             " of another strategy.run(); replicas cannot be nested"));
  }
  ReplicaRun run;
  for (; run.replica < replicas; ++run.replica) {
    const CurrentRun in(&run);
    const Scope scope(absl::StrCat("replica_", run.replica));
    run.next = 0;
    body(run.replica);
    if (run.next < run.changes.size()) {
      throw changes_differ(run.replica, nullptr, &run.changes[run.next].first);
    }
  }
  for (const CollectedChange& change : run.changes) {
    change.first.make(aggregate(change.first.aggregation, change.by_replica));
  }
}

bool in_replica() {
  return current != nullptr;
}

void defer(DeferredChange change) {
  ReplicaRun& run = *current;
  const size_t index = run.next++;
  if (run.replica == 0) {
    run.changes.push_back({std::move(change), {}});
    run.changes.back().by_replica.push_back(std::move(run.changes.back().first.values));
    return;
  }
  const DeferredChange* first = index < run.changes.size() ? &run.changes[index].first : nullptr;
  if (first == nullptr || change.object != first->object || change.call != first->call) {
    throw changes_differ(run.replica, &change, first);
  }
  run.changes[index].by_replica.push_back(std::move(change.values));
}

std::vector<at::Tensor> aggregate(Aggregation aggregation,
                                  const std::vector<std::vector<at::Tensor>>& by_replica) {
  std::vector<at::Tensor> result = by_replica[0];
  const size_t replicas = aggregation == Aggregation::kOnlyFirstReplica ? 1 : by_replica.size();
  for (size_t replica = 1; replica < replicas; ++replica) {
    const std::vector<at::Tensor>& values = by_replica[replica];
    if (values.size() != result.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("replica ", replica, " returned ", values.size(),
                               " tensors, but replica 0 returned ", result.size()));
    }
    for (size_t i = 0; i < result.size(); ++i) result[i] = sum_of(result[i], values[i], replica);
  }
  if (aggregation != Aggregation::kMean || replicas == 1) return result;
  for (at::Tensor& tensor : result) {
    if (tensor.defined()) tensor = tensor.div(static_cast<double>(replicas));
  }
  return result;
}

}  // namespace internal

int replica_id() {
  return internal::current == nullptr ? 0 : internal::current->replica;
}

}  // namespace trireme
