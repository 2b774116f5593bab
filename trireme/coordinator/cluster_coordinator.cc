#include "trireme/coordinator/cluster_coordinator.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_programs.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/worker_link.h"

namespace trireme {

using internal::ClosureQueue;
using internal::ParameterServerHome;
using internal::WorkerLink;

struct ClusterCoordinator::Impl {
  Impl(const ParameterServerStrategy& strategy, const ClusterCoordinatorOptions& options)
      : home(strategy.servers().home()),
        origin(new_incarnation()),
        queue(std::make_shared<ClosureQueue>(std::max<size_t>(options.queue_size, 1))),
        programs(origin, home) {
    const ClusterSpec& spec = strategy.spec();
    if (spec.num_tasks("worker") == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the cluster has no workers to run closures on; add a worker job to it");
    }
    const Credentials credentials =
        value_or_throw(Credentials::of_program(strategy.options().certs));
    throw_if_error(home->client().begin_origin(origin));
    const std::vector<uint64_t> servers = home->client().incarnations();
    auto context = std::make_shared<internal::LinkContext>();
    context->introduction.set_coordinator(origin);
    context->introduction.set_container(strategy.options().container);
    *context->introduction.mutable_servers() = {servers.begin(), servers.end()};
    context->introduction.set_updates_at_once(std::max(options.updates_at_once, 1));
    context->queue = queue;
    context->life_signs = std::make_shared<internal::LifeSigns>();
    context->servers =
        std::make_shared<internal::PsWatch>(spec, credentials, servers, context->life_signs, queue);
    for (int i = 0; i < spec.num_tasks("worker"); ++i) {
      const TaskId task{"worker", i};
      links.push_back(std::make_shared<WorkerLink>(
          context,
          std::make_shared<Channel>(ChannelOptions{
              .address = spec.address(task), .task = task.to_string(), .credentials = credentials}),
          [this] { cancel_in_flight(); }));
    }
    for (const auto& link : links) link->start();
  }

  ~Impl() {
    queue->close(make_status(ErrorCode::kCancelled, "the coordinator has ended"));
    for (const auto& link : links) link->end();
    // Whoever cannot be told has lost its variables, and forgets the origin with them.
    home->client().end_origin(origin, std::chrono::seconds(2)).IgnoreError();
  }

  // An error of the queue, as the user sees it.
  void check(const absl::Status& status) const {
    if (status.ok()) return;
    const Error error = to_error(status);
    if (error.code() == ErrorCode::kDataLoss && !queue->status().ok()) {
      throw PsLost(error.code(), error.message(), error.origin());
    }
    throw error;
  }

  void cancel_in_flight() {
    const uint64_t below = queue->next_sequence();
    for (const auto& link : links) link->cancel_below(below);
  }

  const std::shared_ptr<ParameterServerHome> home;
  const uint64_t origin;  // of this coordinator's pushes
  const std::shared_ptr<ClosureQueue> queue;
  internal::ClosurePrograms programs;
  std::vector<std::shared_ptr<WorkerLink>> links;
};

ClusterCoordinator::ClusterCoordinator(const ParameterServerStrategy& strategy,
                                       const ClusterCoordinatorOptions& options)
    : impl_(std::make_unique<Impl>(strategy, options)) {}

ClusterCoordinator::~ClusterCoordinator() = default;

void ClusterCoordinator::check_usable() const {
  impl_->check(impl_->queue->status());
}

RemoteValue ClusterCoordinator::schedule_step(const internal::FunctionStep& step) {
  auto closure = impl_->programs.closure_of(step);
  impl_->check(impl_->queue->put(closure));
  return RemoteValue(impl_->queue, std::move(closure));
}

void ClusterCoordinator::join() {
  impl_->check(impl_->queue->join());
}

bool ClusterCoordinator::done() {
  const absl::StatusOr<bool> done = impl_->queue->done();
  impl_->check(done.status());
  return *done;
}

RemoteValue::RemoteValue(std::shared_ptr<ClosureQueue> queue,
                         std::shared_ptr<internal::Closure> closure)
    : queue_(std::move(queue)), closure_(std::move(closure)) {}

bool RemoteValue::ready() const {
  return closure_ != nullptr && queue_->is_decided(*closure_);
}

std::vector<at::Tensor> RemoteValue::tensors() const {
  if (closure_ == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition, "the remote value is none: nothing was scheduled");
  }
  return value_or_throw(queue_->fetch(*closure_));
}

at::Tensor RemoteValue::tensor() const {
  std::vector<at::Tensor> all = tensors();
  if (all.size() == 1) return std::move(all[0]);
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("the function gives ", all.size(),
                           " tensors, not one; keep what schedule() returns as it is (auto) and "
                           "fetch that"));
}

}  // namespace trireme
