#include "trireme/runtime/worker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/exec/mkl_warm_up.h"
#include "trireme/rpc/timer.h"

// The messages of a step arrive in any order. A task that is ahead may deliver values before the
// master's RunPart arrives, and a repeated or delayed message may arrive after the step is over. So
// the first message for a step creates its PartStep, whichever it is, and the worker remembers
// which steps are over, so that a late message does not create one again.
//
// Remembering every step that is over would take unbounded memory. Therefore each RunPart carries
// the number of the oldest step in flight at the master: all below it are over, and one number
// stands for them (Registration::over_below). This also frees what a step left here when its
// AbortStep was lost.
//
// The lock guards the tables only. Steps are started, fed, aborted and destroyed without it,
// because that may run operators, make calls and call back into this class.
namespace trireme::internal {
namespace {

// Time between two checks of leases and deadlines.
constexpr auto kLeaseCheck = std::chrono::milliseconds(500);

absl::Status unknown_registration() {
  return make_status(ErrorCode::kNotFound,
                     "this part of a graph is not registered here, or is no longer registered: "
                     "its session has ended, or its lease has run out");
}

}  // namespace

std::string own_container(uint64_t session) {
  return absl::StrCat("session-", format_incarnation(session));
}

Worker::Worker(TaskContext& context, PeerChannels& channels, Executor& executor)
    : context_(context),
      channels_(channels),
      executor_(executor),
      gauges_(context.metrics),
      sessions_gauge_(context.metrics.gauge("sessions_active")) {
  warm_up_mkl();
}

void Worker::start() {
  run_at(after(kLeaseCheck), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      if (self->stopped_) return;
    }
    self->expire_steps_and_sessions();
    self->start();
  });
}

void Worker::stop() {
  std::vector<std::shared_ptr<PartStep>> steps;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (auto& [id, registration] : registrations_) {
      for (auto& [number, step] : registration.steps) steps.push_back(step);
    }
    registrations_.clear();
  }
  for (const auto& step : steps) {
    step->abort(make_status(ErrorCode::kUnavailable, "the server is stopping"));
  }
}

absl::StatusOr<std::shared_ptr<VariableHost>> Worker::variables() const {
  if (context_.variables != nullptr) return context_.variables;
  return make_status(ErrorCode::kUnimplemented, "this server holds no variables",
                     {context_.task.to_string(), ""});
}

absl::Status Worker::register_part(const NewPart& part) {
  auto registered = std::make_shared<RegisteredPart>();
  registered->session = part.session;
  registered->registration = part.registration;
  registered->task = context_.task.to_string();
  registered->scope = part.scope;
  if (!part.scope.job.empty()) {
    // A step may hold variables of its job when a newer generation takes them over. It must not
    // write to them after that.
    TRIREME_ASSIGN_OR_RETURN(auto host, variables());
    registered->check_write = [host = std::move(host), scope = part.scope] {
      return host->check(scope);
    };
  }
  TRIREME_ASSIGN_OR_RETURN(registered->plan, PartPlan::make(part.graph));
  const proto::GraphDef& def = part.graph->def;
  for (const proto::Send& send : def.sends()) {
    RegisteredPart::Destination& destination = registered->destinations[send.edge()];
    TRIREME_ASSIGN_OR_RETURN(const TaskId to, try_call([&] { return TaskId::parse(send.to()); }));
    // A value for the master that is ready at the end of the part travels with the answer, which
    // saves a call. Its destination stays empty.
    const bool at_the_end = send.after() == static_cast<uint32_t>(def.nodes_size());
    if (to == part.master && at_the_end) continue;
    const auto incarnation = part.incarnations.find(send.to());
    if (incarnation == part.incarnations.end()) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("cannot register a part: it sends to ", send.to(),
                                      ", whose incarnation is not in the request"));
    }
    destination.incarnation = incarnation->second;
    TRIREME_ASSIGN_OR_RETURN(destination.channel, channels_.to(to));
  }
  MutexLock lock(mutex_);
  if (stopped_) return make_status(ErrorCode::kUnavailable, "the server is stopping");
  touch_session(part.session, part.lease);
  registrations_[part.registration].part = std::move(registered);
  return absl::OkStatus();
}

void Worker::drop_parts(const std::vector<uint64_t>& registrations) {
  std::vector<Registration> dropped;
  {
    MutexLock lock(mutex_);
    for (uint64_t id : registrations) {
      const auto found = registrations_.find(id);
      if (found == registrations_.end()) continue;
      dropped.push_back(std::move(found->second));
      registrations_.erase(found);
    }
  }
  for (const Registration& registration : dropped) {
    for (const auto& [number, step] : registration.steps) {
      step->abort(
          make_status(ErrorCode::kAborted, "the graph was dropped, or the session has ended"));
    }
  }
}

std::shared_ptr<PartStep> Worker::find_or_make_step(const StepKey& key, bool* made) {
  *made = false;
  const auto found = registrations_.find(key.registration);
  if (found == registrations_.end()) return nullptr;
  Registration& registration = found->second;
  if (key.number < registration.over_below || registration.over.contains(key.number)) {
    return nullptr;
  }
  std::shared_ptr<PartStep>& step = registration.steps[key.number];
  if (step == nullptr) {
    step = std::make_shared<PartStep>(registration.part, key.number, gauges_);
    *made = true;
  }
  return step;
}

void Worker::run_part(const StepKey& key, uint64_t oldest, PartInputs inputs, OnPartResult done) {
  std::shared_ptr<PartStep> step;
  std::shared_ptr<RegisteredPart> part;
  std::vector<std::shared_ptr<PartStep>> stale;
  bool registered = false;
  {
    MutexLock lock(mutex_);
    const auto found = registrations_.find(key.registration);
    registered = found != registrations_.end();
    if (registered) {
      Registration& registration = found->second;
      part = registration.part;
      // Steps before `oldest` are over at the master, but their AbortStep may have been lost.
      if (oldest > registration.over_below && oldest <= key.number) {
        registration.over_below = oldest;
        registration.over.erase(registration.over.begin(), registration.over.lower_bound(oldest));
        const auto end = registration.steps.lower_bound(oldest);
        for (auto old = registration.steps.begin(); old != end; ++old) stale.push_back(old->second);
        registration.steps.erase(registration.steps.begin(), end);
      }
    }
    bool made;
    step = find_or_make_step(key, &made);
  }
  for (const auto& old : stale) {
    old->abort(make_status(ErrorCode::kAborted, "the step is over on other tasks"));
  }
  if (!registered) return done(unknown_registration());
  if (step == nullptr) return done(make_status(ErrorCode::kAborted, "the step is over"));
  // From here on, every way out removes the step. A repeated request must not do so.
  if (!step->claim()) {
    return done(make_status(ErrorCode::kAborted, "the step was started before",
                            {context_.task.to_string(), ""}));
  }
  std::vector<std::shared_ptr<HostedVariable>> variables;
  const auto& def = part->plan->placed().graph->def;
  if (def.variables_size() > 0) {
    const auto host = this->variables();
    for (const proto::Variable& variable : def.variables()) {
      auto hosted = host.ok() ? (*host)->find(part->scope, variable.name())
                              : absl::StatusOr<std::shared_ptr<HostedVariable>>(host.status());
      if (hosted.ok() &&
          (static_cast<int>((*hosted)->tensor.scalar_type()) != variable.type().dtype() ||
           !std::ranges::equal((*hosted)->tensor.sizes(), variable.type().sizes()))) {
        hosted = make_status(ErrorCode::kFailedPrecondition,
                             "its shape or dtype here differs from that in the graph",
                             {"", absl::StrCat("variable '", variable.name(), "'")});
      }
      if (!hosted.ok()) {
        forget_step(key);
        return done(with_origin(hosted.status(), {context_.task.to_string(), ""}));
      }
      variables.push_back(*std::move(hosted));
    }
  }
  auto finish = [this, self = weak_from_this(), key,
                 done = std::move(done)](absl::StatusOr<PartResult> result) mutable {
    if (const auto alive = self.lock()) forget_step(key);
    done(std::move(result));
  };
  step->start(std::move(inputs), std::move(variables), executor_, std::move(finish));
}

void Worker::forget_step(const StepKey& key) {
  std::shared_ptr<PartStep> step;  // declared before the lock, to be destroyed after its release
  MutexLock lock(mutex_);
  const auto found = registrations_.find(key.registration);
  if (found != registrations_.end()) step = take_step(found->second, key.number);
}

std::shared_ptr<PartStep> Worker::take_step(Registration& registration, uint64_t number) {
  if (number >= registration.over_below) registration.over.insert(number);
  auto running = registration.steps.extract(number);
  return running.empty() ? nullptr : std::move(running.mapped());
}

absl::Status Worker::deliver(const StepKey& key, std::vector<CrossingValue> values, Time deadline) {
  std::shared_ptr<PartStep> step;
  bool made = false;
  {
    MutexLock lock(mutex_);
    if (!registrations_.contains(key.registration)) return unknown_registration();
    step = find_or_make_step(key, &made);
  }
  if (step == nullptr) return absl::OkStatus();  // it is over
  for (CrossingValue& value : values) step->deliver(value.edge, std::move(value.pieces));
  if (made) {
    // The request to run the step may never come. The extra second is for a request that comes
    // late.
    run_at(deadline + std::chrono::seconds(1), [weak = weak_from_this(), key] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->abort_step(key, make_status(ErrorCode::kDeadlineExceeded, "the step never ran"));
    });
  }
  return absl::OkStatus();
}

void Worker::abort_step(const StepKey& key, absl::Status why) {
  std::shared_ptr<PartStep> step;
  {
    MutexLock lock(mutex_);
    const auto found = registrations_.find(key.registration);
    if (found == registrations_.end()) return;
    // Records a step that is not here yet as over, too: it must not start later. Both happen under
    // one lock, so that a step which run_part() makes meanwhile is not forgotten without an end.
    step = take_step(found->second, key.number);
  }
  if (step != nullptr) step->abort(std::move(why));
}

absl::StatusOr<std::vector<bool>> Worker::find_variables(const VariableScope& scope,
                                                         const std::vector<std::string>& names) {
  TRIREME_ASSIGN_OR_RETURN(const auto host, variables());
  std::vector<bool> exists;
  for (const std::string& name : names) {
    const absl::Status found = host->find(scope, name).status();
    if (!found.ok() && !absl::IsNotFound(found)) return found;
    exists.push_back(found.ok());
  }
  return exists;
}

absl::Status Worker::make_variables(const NewVariables& made) {
  const size_t count = made.names.size();
  const bool names_devices = !made.devices.empty();
  if ((names_devices && made.devices.size() != count) || made.initial.size() != count) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("cannot create variables: the request names ", count,
                                    " variables and ", made.devices.size(), " devices and carries ",
                                    made.initial.size(), " tensors"));
  }
  TRIREME_ASSIGN_OR_RETURN(const auto host, variables());
  {
    MutexLock lock(mutex_);
    touch_session(made.session, made.lease);
  }
  for (size_t i = 0; i < count; ++i) {
    TRIREME_ASSIGN_OR_RETURN(
        const c10::Device device,
        device_of_variable(made.names[i], names_devices ? made.devices[i] : ""));
    TRIREME_RETURN_IF_ERROR(
        host->create(made.scope, made.names[i], made.initial[i], device).status());
  }
  return absl::OkStatus();
}

void Worker::touch_session(uint64_t session, Duration lease) {
  const auto [found, added] = leases_.try_emplace(session);
  if (added) sessions_gauge_.add(1);
  found->second = std::max(found->second, after(lease));
}

bool Worker::renew_session(uint64_t session, Duration lease) {
  MutexLock lock(mutex_);
  if (!leases_.contains(session)) return false;
  touch_session(session, lease);
  return true;
}

void Worker::end_session(uint64_t session) {
  std::vector<uint64_t> registrations;
  {
    MutexLock lock(mutex_);
    if (leases_.erase(session) > 0) sessions_gauge_.add(-1);
    for (const auto& [id, registration] : registrations_) {
      if (registration.part->session == session) registrations.push_back(id);
    }
  }
  drop_parts(registrations);
  if (context_.variables != nullptr) context_.variables->drop_container(own_container(session));
}

void Worker::expire_steps_and_sessions() {
  std::vector<uint64_t> expired;
  std::vector<std::shared_ptr<PartStep>> late;
  {
    MutexLock lock(mutex_);
    const Time now = Clock::real().now();
    for (const auto& [session, until] : leases_) {
      if (until < now) expired.push_back(session);
    }
    for (const auto& [id, registration] : registrations_) {
      for (const auto& [number, step] : registration.steps) {
        if (step->is_late(now)) late.push_back(step);
      }
    }
  }
  for (const auto& step : late) {
    step->abort(
        make_status(ErrorCode::kDeadlineExceeded, "the step did not end before its deadline"));
  }
  for (uint64_t session : expired) {
    log_info(context_.task.to_string(), ": the lease of session ", format_incarnation(session),
             " has run out; its graphs and variables here are dropped");
    end_session(session);
  }
}

}  // namespace trireme::internal
