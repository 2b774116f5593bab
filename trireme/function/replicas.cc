#include "trireme/function/replicas.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/scope.h"

namespace trireme {
namespace internal {
namespace {

struct CollectedChange {
  DeferredChange first;  // as replica 0 made it
  std::vector<std::vector<at::Tensor>> by_replica;
};

// One for_each_replica() under way.
struct ReplicaRun {
  int replica = 0;
  size_t next = 0;  // how many changes this replica has made
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

// Either may be null: that replica makes no change there.
Error other_changes(int replica, const DeferredChange* its, const DeferredChange* first) {
  const std::string function = captured_function();
  return Error(ErrorCode::kFailedPrecondition,
               absl::StrCat(function.empty() ? "" : absl::StrCat("in function '", function, "' "),
                            "replica ", replica, " calls ", describe(its),
                            " where replica 0 calls ", describe(first),
                            ". A change is made once for all replicas, so they have to make the "
                            "same ones in the same order; which they are must not depend on "
                            "tr::replica_id() or on the data"),
               {"", (its != nullptr ? its : first)->name});
}

at::Tensor sum_of(const at::Tensor& sum, const at::Tensor& value, size_t replica) {
  if (!value.defined()) return sum;
  if (!sum.defined()) return value;
  if (value.sizes() != sum.sizes()) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("replica ", replica, " gives a tensor of shape [",
                             absl::StrJoin(value.sizes(), ", "), "], those before it [",
                             absl::StrJoin(sum.sizes(), ", "),
                             "]; what replicas give is taken together element by element"));
  }
  // Not in place: a write would keep branches of the graph from running at once. A dense tensor
  // takes a sparse one, not the other way round.
  return sum.is_sparse() ? value.add(sum) : sum.add(value);
}

}  // namespace

void for_each_replica(int replicas, const std::function<void(int)>& body) {
  if (replicas == 1) return body(0);
  if (current != nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                absl::StrCat("strategy.run() inside of replica ", current->replica,
                             " of another one; replicas have none of their own"));
  }
  ReplicaRun run;
  for (; run.replica < replicas; ++run.replica) {
    const CurrentRun in(&run);
    const Scope scope(absl::StrCat("replica_", run.replica));
    run.next = 0;
    body(run.replica);
    if (run.next < run.changes.size()) {
      throw other_changes(run.replica, nullptr, &run.changes[run.next].first);
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
    throw other_changes(run.replica, &change, first);
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
                  absl::StrCat("replica ", replica, " gives ", values.size(),
                               " tensors, replica 0 gives ", result.size()));
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
