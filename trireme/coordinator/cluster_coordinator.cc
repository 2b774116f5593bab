#include "trireme/coordinator/cluster_coordinator.h"

#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_functions.h"
#include "trireme/coordinator/closure_pause.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/coordinator/server_fence.h"
#include "trireme/coordinator/worker_links.h"
#include "trireme/coordinator/worker_resources.h"
#include "trireme/data/ranges.h"
#include "trireme/ps/pausable.h"
#include "trireme/rpc/blocking_work.h"
#include "trireme/rpc/timer.h"
#include "trireme/strategy/replica_count.h"

// The parts of a coordinator, and how they work together:
//
//   ClosureFunctions  turns a captured step into a closure and describes its function for workers
//   ClosureQueue      holds closures until they are decided, and the first error
//   ServerFence       keeps updates of earlier closures away when an error is raised or join() ends
//   WorkerLinks       has a ClosureDispatcher for each worker, which takes closures from the queue
//   WorkerResources   holds the datasets from which workers draw
//   PausableClosures  holds the closures at a cut, for example while a checkpoint is made
//   PsWatch           finds out whether a parameter server is lost, and then closes the queue
//
// Everything below schedule() is driven by answers and timers; only the diagnosis of missing
// workers uses a thread. The coordinator draws a random number, its writer id, and registers it
// with the parameter servers before the first closure runs. (writer, sequence, round) identifies a
// push, so a server applies each push once however many workers send it. The servers accept pushes
// of the writer while the client program renews its lease (JobMembership), so that workers whose
// coordinator was killed cannot push for long. If a newer program takes over the job, the queue is
// closed.
//
// Deadlines use one timer for the earliest deadline. When it fires, the queue fails the closures
// that are late, workers are told to end theirs, and the timer is set for the next deadline.
//
// The destructor closes the queue first, which releases threads that wait in it. It then ends the
// connections, which stops the closures on the workers. It ends the writer last, after which the
// servers reject pushes that are still under way.
namespace trireme {

using internal::ClosureFunctions;
using internal::ClosurePtr;
using internal::ClosureQueue;
using internal::ParameterServerBackend;
using internal::WorkerLinks;
using internal::WorkerResources;

namespace {

constexpr Duration kForEver = std::chrono::hours(24 * 365);

// Pauses the closures of a coordinator together with the other updates of its program.
class PausableClosures final : public internal::Pausable {
 public:
  PausableClosures(uint64_t writer, std::shared_ptr<ClosureQueue> queue,
                   std::shared_ptr<WorkerLinks> links)
      : writer_(writer), queue_(std::move(queue)), links_(std::move(links)) {}

  absl::StatusOr<std::unique_ptr<Pause>> pause(Time drain_until, Time limit) override {
    TRIREME_ASSIGN_OR_RETURN(auto held,
                             internal::pause_closures(queue_, *links_, drain_until, limit));
    return std::make_unique<Held>(writer_, std::move(held));
  }

 private:
  class Held final : public Pause {
   public:
    Held(uint64_t writer, std::unique_ptr<internal::ClosurePause> pause)
        : writer_(writer), pause_(std::move(pause)) {}
    internal::PausedWriter writer() const override { return {writer_, pause_->below()}; }

   private:
    const uint64_t writer_;
    const std::unique_ptr<internal::ClosurePause> pause_;
  };

  const uint64_t writer_;
  const std::shared_ptr<ClosureQueue> queue_;
  const std::shared_ptr<WorkerLinks> links_;
};

}  // namespace

struct ClusterCoordinator::Impl {
  Impl(const ParameterServerStrategy& strategy, const ClusterCoordinatorOptions& options)
      : spec(strategy.spec()),
        backend(internal::Access<ParameterServers>::backend(strategy.servers())),
        writer(new_incarnation()),
        queue(std::make_shared<ClosureQueue>(
            std::max<size_t>(options.queue_size, 1),
            internal::ClosureQueueOptions{
                .fence = internal::make_server_fence(backend->membership(), writer)})),
        functions(std::make_shared<ClosureFunctions>(writer, backend)),
        resources(std::make_shared<WorkerResources>(
            [replicas = internal::Access<ParameterServerStrategy>::replicas(strategy)] {
              return replicas->get();
            })) {
    check_workers(spec);
    const Credentials credentials =
        value_or_throw(Credentials::of_program(strategy.options().certs));
    const std::shared_ptr<JobMembership>& membership = backend->membership();
    throw_if_error(membership->begin_writer(writer));
    // The destructor does not run if the rest of the constructor throws.
    absl::Cleanup undo = [this] { leave_servers(); };
    end_token = membership->on_end([weak = std::weak_ptr(queue)](const absl::Status& why) {
      if (const auto queue = weak.lock()) queue->close(why);
    });
    const std::vector<uint64_t> servers = backend->client().incarnations();
    auto context = std::make_shared<internal::LinkContext>();
    context->introduction.set_coordinator(writer);
    context->introduction.set_container(strategy.options().container);
    context->introduction.set_job(membership->job().id);
    context->introduction.set_generation(membership->job().generation);
    *context->introduction.mutable_servers() = {servers.begin(), servers.end()};
    context->introduction.set_updates_at_once(std::max(options.updates_at_once, 1));
    context->introduction.set_no_shared_memory(!strategy.options().shared_memory);
    context->queue = queue;
    context->resources = resources;
    context->functions = functions->in_use();
    context->health_checker = std::make_shared<internal::HealthChecker>();
    context->servers = std::make_shared<internal::PsWatch>(spec, credentials, servers,
                                                           context->health_checker, queue);
    context->stragglers = std::make_shared<internal::StragglerWatch>();
    links = std::make_shared<WorkerLinks>(context, credentials);
    links->update(spec);
    pausable = std::make_shared<PausableClosures>(writer, queue, links);
    backend->add_pausable(pausable);
    std::move(undo).Cancel();
  }

  ~Impl() {
    queue->close(make_status(ErrorCode::kCancelled, "the coordinator has ended"));
    links->end();
    leave_servers();
  }

  // Ends the writer, which the client program would renew for ever, and forgets the callback for
  // the end of the program's part in the job.
  void leave_servers() const {
    const std::shared_ptr<JobMembership>& membership = backend->membership();
    membership->remove_on_end(end_token);
    // Best effort: a server that is lost has forgotten the writer together with its variables.
    membership->end_writer(writer, std::chrono::seconds(2)).IgnoreError();
  }

  static void check_workers(const ClusterSpec& spec) {
    spec.check_ports();
    if (spec.num_tasks("worker") > 0) return;
    throw Error(ErrorCode::kInvalidArgument,
                "the cluster has no workers to run closures on; add a worker job to it");
  }

  internal::PendingResult schedule(const ClosureOptions& options, const ClosurePtr& closure) {
    closure->repeat = static_cast<uint32_t>(options.repeat);
    closure->sum_results = options.sum_results;
    if (options.deadline) {
      closure->deadline = after(std::min<Duration>(*options.deadline, kForEver));
    }
    check(queue->put(closure));
    if (closure->deadline) watch_deadlines(queue, links);
    return {queue, closure};
  }

  // Throws the error of a call to the queue, as PsLost if the queue was closed with DATA_LOSS.
  void check(const absl::Status& status) const {
    if (status.ok()) return;
    const Error error = to_error(status);
    if (error.code() == ErrorCode::kDataLoss && !queue->status().ok()) {
      throw PsLost(error.code(), error.message(), error.origin());
    }
    throw error;
  }

  // Sets the timer for the next deadline, unless it is set. The timer holds the links weakly: it
  // cannot be cancelled, and must not keep a coordinator that has ended alive.
  static void watch_deadlines(const std::shared_ptr<ClosureQueue>& queue,
                              const std::weak_ptr<WorkerLinks>& weak) {
    const auto time = queue->next_expiry();
    if (!time) return;
    internal::run_at(*time, [queue, weak] {
      const auto links = weak.lock();
      if (links == nullptr) return;
      const uint64_t cancelled_below = queue->expire(Clock::real().now());
      if (cancelled_below > 0) links->cancel_below(cancelled_below);
      watch_deadlines(queue, weak);
    });
  }

  const ClusterSpec spec;
  const std::shared_ptr<ParameterServerBackend> backend;
  const uint64_t writer;   // Identifies this coordinator's pushes and, to workers, the coordinator.
  uint64_t end_token = 0;  // Token of the callback for the end of the program's part in the job.
  const std::shared_ptr<ClosureQueue> queue;
  const std::shared_ptr<ClosureFunctions> functions;
  const std::shared_ptr<WorkerResources> resources;
  std::shared_ptr<WorkerLinks> links;
  std::shared_ptr<internal::Pausable> pausable;
};

ClusterCoordinator::ClusterCoordinator(const ParameterServerStrategy& strategy,
                                       const ClusterCoordinatorOptions& options)
    : impl_(std::make_unique<Impl>(strategy, options)) {}

// A function of a closure may hold the last handle of the coordinator, and is released by a thread
// that handles answers.
ClusterCoordinator::~ClusterCoordinator() {
  internal::run_blocking([impl = std::move(impl_)]() mutable { impl.reset(); });
}

void ClusterCoordinator::check_usable(const ClosureOptions& options, bool own_iterators) {
  if (options.repeat < 1 || options.repeat > static_cast<int>(internal::kMostRepetitions)) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("a closure can repeat 1 to ", internal::kMostRepetitions,
                             " times, not ", options.repeat, " times"));
  }
  if (options.repeat > 1 && own_iterators) {
    throw Error(ErrorCode::kInvalidArgument,
                "a closure that repeats cannot draw from an iterator of the client program; use "
                "create_per_worker_dataset(), so that workers draw the elements");
  }
  impl_->check(impl_->queue->admit());
}

internal::PendingResult ClusterCoordinator::schedule_step(const ClosureOptions& options,
                                                          const internal::FunctionStep& step) {
  return impl_->schedule(options, impl_->functions->closure_of(step, internal::StandIns()));
}

internal::PendingResult ClusterCoordinator::schedule_step(
    const ClosureOptions& options, const std::shared_ptr<const internal::FunctionStep>& step,
    const std::shared_ptr<const internal::StandIns>& stand_ins, Prepare again) {
  if (stand_ins->sources().size() != step->draws.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "an iterator that is passed together with per-worker values must be an argument of "
                "its own, not part of another argument",
                {"", absl::StrCat("function '", step->function, "'")});
  }
  for (const auto& [id, resource] : stand_ins->resources()) {
    if (impl_->resources->has(id)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "it was given per-worker values of another coordinator, and would draw the same "
                "elements again; make them with the coordinator that schedules it",
                {"", absl::StrCat("function '", step->function, "'")});
  }
  const auto closure = impl_->functions->closure_of(*step, *stand_ins);
  // Prepares the same call for the shapes that a worker has drawn. The closure owns this function,
  // so the function refers to the closure by a plain pointer.
  closure->capture_again = [weak = std::weak_ptr(impl_->functions), again = std::move(again), step,
                            stand_ins, raw = closure.get()](const internal::DrawnShapes& drawn) {
    const auto functions = weak.lock();
    if (functions == nullptr) throw Error(ErrorCode::kCancelled, "the coordinator has ended");
    internal::StandIns others(drawn, *stand_ins, *step);
    functions->set_variant(*raw, *again(others), others);
  };
  return impl_->schedule(options, closure);
}

internal::PendingResult ClusterCoordinator::schedule_native(const ClosureOptions& options,
                                                            const std::string& name,
                                                            std::vector<at::Tensor> tensors) {
  return impl_->schedule(options, impl_->functions->native_closure_of(name, std::move(tensors)));
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(
    const Dataset& dataset, const PerWorkerDatasetOptions& options) {
  if (options.shard == Shard::kDynamic) {
    if (options.epochs < 0 || options.epochs > static_cast<int64_t>(internal::kMostEpochs)) {
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("a dataset cannot have ", options.epochs,
                               " epochs; give their number, at most ", internal::kMostEpochs,
                               ", or 0 for endless repetition"),
                  {"", absl::StrCat("dataset ", dataset.describe())});
    }
    return internal::Access<PerWorkerDataset>::make(
        impl_->resources->make_shared(dataset, static_cast<uint64_t>(options.epochs)));
  }
  if (options.shard != Shard::kOff) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "a per-worker dataset has Shard::kOff or Shard::kDynamic; for other policies give a "
        "function that returns shard_dataset(dataset, policy, context) for its context",
        {"", absl::StrCat("dataset ", dataset.describe())});
  }
  return create_per_worker_dataset([dataset](const InputContext&) { return dataset; });
}

PerWorkerDataset ClusterCoordinator::create_per_worker_dataset(
    std::function<Dataset(const InputContext&)> dataset_function) {
  return internal::Access<PerWorkerDataset>::make(
      impl_->resources->make(std::move(dataset_function)));
}

// A per-worker tensor is a dataset that repeats one element, so workers need nothing else for it.
PerWorkerValues<at::Tensor> ClusterCoordinator::create_per_worker_tensor(
    std::function<at::Tensor(const InputContext&)> function) {
  return internal::Access<PerWorkerValues<at::Tensor>>::make(impl_->resources->make(
      [function = std::move(function)](const InputContext& context) {
        return Dataset::from_tensors({function(context).detach().unsqueeze(0)}).repeat();
      },
      /*is_constant=*/true));
}

void ClusterCoordinator::join(const JoinOptions& options) {
  const auto& report = options.on_progress;
  const auto progress = [&](uint64_t done, uint64_t left) { report({done, left}); };
  const Time limit =
      options.timeout ? after(std::min<Duration>(*options.timeout, kForEver)) : Time::max();
  // Progress is reported at most once per millisecond, however short the requested interval.
  const Duration every =
      std::clamp<Duration>(options.progress_every, std::chrono::milliseconds(1), kForEver);
  impl_->check(report ? impl_->queue->join(limit, every, progress) : impl_->queue->join(limit));
}

void ClusterCoordinator::update_workers(const ClusterSpec& spec) {
  impl_->check_workers(spec);
  const ClusterSpec& before = impl_->spec;
  bool same = spec.num_tasks("ps") == before.num_tasks("ps");
  for (int i = 0; same && i < spec.num_tasks("ps"); ++i) {
    same = spec.address({"ps", i}) == before.address({"ps", i});
  }
  if (!same) {
    throw Error(ErrorCode::kInvalidArgument,
                "the cluster spec has other parameter servers than the strategy; update_workers() "
                "can only add and remove workers");
  }
  impl_->links->update(spec);
}

std::vector<WorkerState> ClusterCoordinator::workers() const {
  return impl_->links->states();
}

bool ClusterCoordinator::done() {
  const absl::StatusOr<bool> done = impl_->queue->done();
  impl_->check(done.status());
  return *done;
}

}  // namespace trireme
