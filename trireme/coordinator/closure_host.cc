#include "trireme/coordinator/closure_host.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/coordinator/closure_run.h"

namespace trireme::internal {
namespace {

constexpr size_t kMostResources = 1024;
// Number of missing devices that are reported for one coordinator.
constexpr size_t kMostWarnings = 100;

}  // namespace

ClosureHost::ClosureHost(ClosureHostOptions options, std::unique_ptr<PsClient> servers,
                         std::shared_ptr<EndingExecutor> executor)
    : server_incarnations_(std::move(options.server_incarnations)),
      devices_(options.devices),
      environment_{.coordinator = options.coordinator,
                   .task = std::move(options.task),
                   .servers = std::move(servers),
                   .executor = std::move(executor),
                   .turns = UpdateTurns(options.updates_at_once)} {}

absl::Status ClosureHost::add_function(uint32_t id, std::shared_ptr<const GraphData> graph,
                                       const std::vector<std::optional<VariableLayout>>& layouts,
                                       std::vector<ClosureDraw> draws) {
  {
    MutexLock lock(mutex_);
    if (functions_.contains(id)) return absl::OkStatus();
  }
  TRIREME_ASSIGN_OR_RETURN(
      HostedFunctionPtr function,
      make_hosted_function(std::move(graph), layouts, std::move(draws), devices_, environment_.task,
                           *environment_.servers));
  MutexLock lock(mutex_);
  for (const std::string& missing : function->missing_devices) {
    if (warned_.size() == kMostWarnings || !warned_.insert(missing).second) continue;
    log_warning("function '", function->name, "' of a client program: ", missing);
  }
  functions_[id] = std::move(function);
  return absl::OkStatus();
}

absl::Status ClosureHost::add_native_function(uint32_t id, const std::string& name) {
  TRIREME_ASSIGN_OR_RETURN(HostedFunctionPtr function,
                           make_hosted_native_function(name, environment_.task));
  MutexLock lock(mutex_);
  functions_[id] = std::move(function);
  return absl::OkStatus();
}

void ClosureHost::drop_function(uint32_t id) {
  MutexLock lock(mutex_);
  functions_.erase(id);
}

absl::Status ClosureHost::add_resource(uint64_t id, std::shared_ptr<ResourceReader> reader) {
  MutexLock lock(mutex_);
  if (resources_.size() >= kMostResources && !resources_.contains(id)) {
    return make_status(ErrorCode::kFailedPrecondition,
                       absl::StrCat("this worker already has ", resources_.size(),
                                    " iterators of the client program, the maximum; release some "
                                    "of the program's per-worker datasets"),
                       {environment_.task, ""});
  }
  resources_.try_emplace(id, std::move(reader));
  return absl::OkStatus();
}

void ClosureHost::drop_resource(uint64_t id) {
  std::shared_ptr<ResourceReader> dropped;  // Destroyed after the lock is released.
  MutexLock lock(mutex_);
  const auto found = resources_.find(id);
  if (found == resources_.end()) return;
  dropped = std::move(found->second);
  resources_.erase(found);
}

// Resolves the ids of all closures under the lock before any of them runs, so that a batch either
// runs as a whole or is rejected as a whole. From then on the runs own what they use, and functions
// and resources may be dropped at any time.
void ClosureHost::run(ReceivedBatch received, std::stop_source stop, ClosureBatch::Done done) {
  std::vector<ReceivedClosure>& closures = received.closures;
  struct Found {
    std::vector<HostedFunctionPtr> functions;
    AllottedSources sources;
  };
  std::vector<Found> found(closures.size());
  uint64_t last = 0;
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < closures.size(); ++i) {
      const ReceivedClosure& call = closures[i];
      last = std::max(last, call.sequence + call.repeat - 1);
      // The request to cancel has overtaken the closure.
      if (call.sequence < cancelled_below_) stop.request_stop();
      auto functions = functions_of(call);
      auto sources = sources_of(call);
      refused = functions.ok() ? sources.status() : functions.status();
      if (!refused.ok()) break;
      found[i].functions = *std::move(functions);
      found[i].sources = *std::move(sources);
    }
  }
  if (!refused.ok() || closures.empty()) order_->note_entered(received.number);
  if (!refused.ok()) return done(refused);
  if (closures.empty()) return done(std::vector<RunResult>());
  // The pointer shares ownership of the host: the service evicts hosts that nothing else holds.
  auto batch = std::make_shared<ClosureBatch>(
      std::shared_ptr<ClosureEnvironment>(shared_from_this(), &environment_), batches_,
      closures.size(), received.watermark, last, std::move(stop), std::move(done));
  std::vector<std::shared_ptr<ClosureRun>> runs;
  for (size_t i = 0; i < closures.size(); ++i) {
    runs.push_back(std::make_shared<ClosureRun>(batch, i, std::move(found[i].functions),
                                                std::move(closures[i]),
                                                std::move(found[i].sources)));
  }
  // Closures that take no turns need not wait for those of other batches.
  if (std::ranges::none_of(runs, [](const auto& run) { return run->takes_turns(); })) {
    const auto note = [order = order_, number = received.number] { order->note_entered(number); };
    if (order_->may_enter(received.number, received.after, note)) note();
    for (const auto& run : runs) run->begin();
    return;
  }
  const auto enter = [order = order_, number = received.number, runs] {
    std::vector<std::shared_ptr<ClosureRun>> entered;
    for (const auto& run : runs) {
      if (ClosureRun::enter(run)) entered.push_back(run);
    }
    order->note_entered(number);
    return entered;
  };
  const bool entered = order_->may_enter(received.number, received.after, [enter] {
    for (const auto& run : enter()) ClosureRun::begin_later(run);
  });
  if (!entered) return;
  for (const auto& run : enter()) run->begin();
}

bool ClosureHost::is_quick(const std::vector<ReceivedClosure>& closures) {
  constexpr Duration kQuick = std::chrono::microseconds(50);
  Duration sum{};
  MutexLock lock(mutex_);
  for (const ReceivedClosure& closure : closures) {
    const auto found = functions_.find(closure.function);
    if (found != functions_.end()) sum += found->second->usual_time.get() * closure.repeat;
  }
  return sum <= kQuick;
}

void ClosureHost::cancel_below(uint64_t sequence) {
  {
    MutexLock lock(mutex_);
    cancelled_below_ = std::max(cancelled_below_, sequence);
  }
  batches_.stop_below(sequence);
}

absl::StatusOr<std::vector<HostedFunctionPtr>> ClosureHost::functions_of(
    const ReceivedClosure& call) {
  std::vector<HostedFunctionPtr> functions;
  const auto found = functions_.find(call.function);
  if (found == functions_.end()) {
    return make_status(ErrorCode::kNotFound, "the closure's function is not registered");
  }
  TRIREME_RETURN_IF_ERROR(found->second->check(call));
  functions.push_back(found->second);
  for (uint32_t id : call.variants) {
    const auto variant = functions_.find(id);
    if (variant == functions_.end() || !variant->second->check(call).ok()) continue;
    // A run takes its turn before it draws, so before it is known which variant it will use. All
    // of them must therefore agree on whether they take turns.
    if (variant->second->takes_turns != functions[0]->takes_turns) continue;
    functions.push_back(variant->second);
  }
  return functions;
}

absl::StatusOr<AllottedSources> ClosureHost::sources_of(const ReceivedClosure& call) {
  AllottedSources sources;
  for (size_t i = 0; i < call.resources.size(); ++i) {
    const auto found = resources_.find(call.resources[i]);
    if (found == resources_.end()) {
      return make_status(ErrorCode::kNotFound, "an iterator of the closure was not created");
    }
    sources.push_back(std::make_shared<AllottedSource>(found->second, call.numbers[i]));
  }
  return sources;
}

}  // namespace trireme::internal
