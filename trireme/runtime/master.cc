#include "trireme/runtime/master.h"

#include <algorithm>
#include <future>
#include <optional>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/graph/graph_file.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/timer.h"
#include "trireme/runtime/server_service.h"
#include "trireme/runtime/session.pb.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMostGraphs = 256;  // of a session; the least recently used goes
constexpr auto kSessionCheck = milliseconds(200);
// For tasks that are not up. Then the client is told, and asks again.
constexpr auto kWaitForTasks = std::chrono::seconds(1);
constexpr auto kTimeToAnswer = milliseconds(200);

absl::Status unknown_session(uint64_t session) {
  return make_status(ErrorCode::kNotFound,
                     absl::StrCat("session ", format_incarnation(session),
                                  " is not known here: it was closed, or its lease ran out"));
}

int64_t to_ms(Duration duration) {
  return std::chrono::duration_cast<milliseconds>(duration).count();
}

// Several calls at once; the first error, once all have ended.
class CallGroup {
 public:
  void add(Channel& channel, const std::string& method, Message request, CallOptions options,
           const std::string& task) {
    auto promise = std::make_shared<std::promise<absl::Status>>();
    answers_.push_back(promise->get_future());
    channel.call(method, std::move(request), options, [promise, task](const Response& response) {
      promise->set_value(with_origin(response.status(), {task, ""}));
    });
  }

  absl::Status wait() {
    absl::Status first;
    for (auto& answer : answers_) {
      absl::Status status = answer.get();  // comes by the call's deadline
      if (first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  std::vector<std::future<absl::Status>> answers_;
};

}  // namespace

Master::Master(TaskContext& context, PeerChannels& channels, std::shared_ptr<Worker> worker,
               Executor& executor)
    : context_(context),
      channels_(channels),
      worker_(std::move(worker)),
      executor_(executor),
      next_registration_(new_incarnation()) {
  MutexLock lock(mutex_);
  devices_[context.task] = context.devices;
}

void Master::start() {
  run_at(after(kSessionCheck), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    {
      MutexLock lock(self->mutex_);
      if (self->stopped_) return;
    }
    self->look_after_sessions();
    self->start();
  });
}

void Master::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  sessions_.clear();
}

absl::Status Master::open_session(uint64_t session, const SessionSettings& settings) {
  if (session == 0 || settings.lease < seconds(1) || settings.lease > std::chrono::hours(24)) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("a session needs an id and a lease of one second to a day; got ",
                     format_duration(settings.lease)));
  }
  MutexLock lock(mutex_);
  if (stopped_) return make_status(ErrorCode::kUnavailable, "the server stops");
  Session& opened = sessions_[session];
  opened.settings = settings;
  if (opened.settings.container.empty()) opened.settings.container = own_container(session);
  opened.until = after(settings.lease);
  return absl::OkStatus();
}

void Master::close_session(uint64_t session, Time deadline) {
  std::set<TaskId> tasks;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    tasks = found->second.tasks;
    sessions_.erase(found);
  }
  worker_->end_session(session);
  CloseSessionRequest request;
  request.set_session(session);
  for (const TaskId& task : tasks) {
    const auto channel = channels_.to(task);
    if (task == context_.task || !channel.ok()) continue;
    (*channel)->call(kEndSession, make_message(request),
                     {.deadline = deadline, .retry = step_retry()}, [](const Response&) {});
  }
}

absl::StatusOr<std::shared_ptr<MasterGraph>> Master::find_graph(uint64_t session, uint64_t graph) {
  MutexLock lock(mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return unknown_session(session);
  found->second.until = after(found->second.settings.lease);
  const auto known = found->second.graphs.find(graph);
  if (known == found->second.graphs.end()) {
    return make_status(ErrorCode::kNotFound,
                       absl::StrCat("graph ", graph, " is not registered (any more)"));
  }
  return known->second;
}

// Asks the tasks that the graph names, and have not been asked, for their devices. Some may not be
// up yet: then tells which.
absl::StatusOr<std::map<TaskId, DeviceList>> Master::devices_of_tasks(const proto::GraphDef& def,
                                                                      Time deadline,
                                                                      std::string& waits_for) {
  std::set<std::string> named;
  for (const proto::Node& node : def.nodes()) named.insert(node.device());
  for (const proto::Variable& variable : def.variables()) named.insert(variable.device());
  std::set<TaskId> asked;
  std::map<TaskId, DeviceList> devices;
  {
    MutexLock lock(mutex_);
    // Tasks that nothing is placed on count with a CPU: errors list them.
    for (const TaskId& task : context_.spec.without_evaluator().all_tasks()) devices[task] = {};
    for (const auto& [task, known] : devices_) devices[task] = known;
    for (const std::string& device : named) {
      TRIREME_ASSIGN_OR_RETURN(const DeviceSpec spec,
                               try_call([&] { return DeviceSpec::parse(device); }));
      const TaskId task = task_of(spec, context_.task);
      if (devices.contains(task) && !devices_.contains(task)) asked.insert(task);
    }
  }
  std::vector<std::shared_ptr<Channel>> held;
  std::vector<Channel*> channels;
  for (const TaskId& task : asked) {
    TRIREME_ASSIGN_OR_RETURN(held.emplace_back(), channels_.to(task));
    channels.push_back(held.back().get());
  }
  TRIREME_ASSIGN_OR_RETURN(
      waits_for, find_missing(channels, std::min(deadline - kTimeToAnswer, after(kWaitForTasks))));
  if (!waits_for.empty()) return devices;
  for (const TaskId& task : asked) {
    TRIREME_ASSIGN_OR_RETURN(const auto channel, channels_.to(task));
    std::promise<absl::StatusOr<TaskDescription>> answer;
    describe_task(*channel, {.deadline = deadline, .wait_for_ready = true, .retry = step_retry()},
                  [&](absl::StatusOr<TaskDescription> told) { answer.set_value(std::move(told)); });
    const absl::StatusOr<TaskDescription> told = answer.get_future().get();
    if (!told.ok()) return with_origin(told.status(), {task.to_string(), ""});
    DeviceList list;
    list.cpus = list.gpus = 0;
    for (const std::string& name : told->devices) {
      const auto spec = try_call([&] { return DeviceSpec::parse(name); });
      if (!spec.ok()) return spec.status();
      ++(spec->type == DeviceType::kGpu ? list.gpus : list.cpus);
    }
    devices[task] = list;
    MutexLock lock(mutex_);
    devices_[task] = list;
  }
  return devices;
}

absl::StatusOr<Master::NewGraph> Master::register_graph(uint64_t session, uint64_t graph,
                                                        std::shared_ptr<const GraphData> data,
                                                        Time deadline) {
  SessionSettings settings;
  std::shared_ptr<MasterGraph> made;  // also by an earlier attempt of the same call
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return unknown_session(session);
    settings = found->second.settings;
    const auto known = found->second.graphs.find(graph);
    if (known != found->second.graphs.end()) made = known->second;
  }
  NewGraph result;
  if (made == nullptr) {
    TRIREME_ASSIGN_OR_RETURN(const auto plan, compile(data));
    PlacementOptions options;
    options.master = context_.task;
    options.soft = !settings.strict_placement;
    TRIREME_ASSIGN_OR_RETURN(options.tasks,
                             devices_of_tasks(data->def, deadline, result.waits_for));
    if (!result.waits_for.empty()) return result;
    TRIREME_ASSIGN_OR_RETURN(PlacedGraph placed, place(*plan, options));
    std::vector<GraphPart> parts = cut(placed, context_.task);
    made = std::make_shared<MasterGraph>(session, settings, std::move(placed), std::move(parts));
  }
  TRIREME_ASSIGN_OR_RETURN(const auto registered, ensure_registered(made, deadline));

  result.graph = made;
  const auto& def = made->placed().graph->def;
  std::map<TaskId, std::vector<uint32_t>> by_task;
  for (int i = 0; i < def.variables_size(); ++i) {
    const TaskId& task = made->placed().variable_tasks[i];
    const auto incarnation = registered->incarnations.find(task);
    result.variables.push_back(
        {def.variables(i).name(), task,
         incarnation == registered->incarnations.end() ? 0 : incarnation->second, false});
    by_task[task].push_back(static_cast<uint32_t>(i));
  }
  for (const auto& [task, numbers] : by_task) {
    VariablesRequest request;
    request.set_container(settings.container);
    std::vector<std::string> names;
    for (uint32_t i : numbers) names.push_back(def.variables(static_cast<int>(i)).name());
    std::vector<bool> exists;
    if (task == context_.task) {
      TRIREME_ASSIGN_OR_RETURN(exists, worker_->find_variables(settings.container, names));
    } else {
      *request.mutable_names() = {names.begin(), names.end()};
      TRIREME_ASSIGN_OR_RETURN(const auto channel, channels_.to(task));
      const Response response = channel->call(kFindVariables, make_message(request),
                                              {.deadline = deadline, .retry = step_retry()});
      if (!response.ok()) return with_origin(response.status(), {task.to_string(), ""});
      TRIREME_ASSIGN_OR_RETURN(const auto answer, parse_body<VariablesResponse>(*response));
      exists.assign(answer.exists().begin(), answer.exists().end());
    }
    for (size_t i = 0; i < numbers.size() && i < exists.size(); ++i) {
      result.variables[numbers[i]].exists = exists[i];
    }
  }

  std::vector<std::shared_ptr<MasterGraph>> dropped;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return unknown_session(session);
    Session& open = found->second;
    open.until = after(open.settings.lease);
    for (const GraphPart& part : made->parts()) open.tasks.insert(part.task);
    for (const VariablePlace& variable : result.variables) open.tasks.insert(variable.task);
    // Two attempts of one call may both have come here; steps may run with what the first made.
    std::shared_ptr<MasterGraph>& known = open.graphs[graph];
    if (known == nullptr) known = made;
    if (known != made) dropped.push_back(std::exchange(result.graph, known));
    open.recent.remove(graph);
    open.recent.push_front(graph);
    if (open.recent.size() > kMostGraphs) {
      dropped.push_back(std::move(open.graphs[open.recent.back()]));
      open.graphs.erase(open.recent.back());
      open.recent.pop_back();
    }
  }
  for (const auto& old : dropped) drop_registrations(*old);
  return result;
}

void Master::drop_registrations(const MasterGraph& graph) {
  const auto registered = graph.registered();
  if (registered == nullptr) return;
  worker_->drop_parts({registered->id});
  DropPartsRequest request;
  request.add_registrations(registered->id);
  for (const auto& channel : registered->channels) {
    if (channel == nullptr) continue;
    channel->call(kDropParts, make_message(request),
                  {.deadline = after(seconds(10)), .retry = step_retry()}, [](const Response&) {});
  }
}

absl::StatusOr<std::shared_ptr<const MasterGraph::Registered>> Master::ensure_registered(
    const std::shared_ptr<MasterGraph>& graph, Time deadline) {
  MutexLock lock(registering_);
  if (auto registered = graph->registered()) return registered;
  auto registered = std::make_shared<MasterGraph::Registered>();
  registered->life = life_;
  registered->id = next_registration_++;
  registered->incarnations[context_.task] = context_.incarnation;
  // Who is there now: parts send to these and to no later ones.
  for (const GraphPart& part : graph->parts()) {
    if (part.task == context_.task) {
      registered->channels.push_back(nullptr);
      continue;
    }
    TRIREME_ASSIGN_OR_RETURN(auto channel, channels_.to(part.task));
    std::promise<absl::StatusOr<TaskDescription>> answer;
    describe_task(*channel, {.deadline = deadline, .retry = step_retry()},
                  [&](absl::StatusOr<TaskDescription> told) { answer.set_value(std::move(told)); });
    const absl::StatusOr<TaskDescription> told = answer.get_future().get();
    if (!told.ok()) return with_origin(told.status(), {part.task.to_string(), ""});
    registered->incarnations[part.task] = told->incarnation;
    registered->channels.push_back(std::move(channel));
  }
  CallGroup calls;
  absl::Status own;
  const SessionSettings& settings = graph->settings();
  for (size_t i = 0; i < graph->parts().size(); ++i) {
    const GraphPart& part = graph->parts()[i];
    if (registered->channels[i] == nullptr) {
      Worker::NewPart local{graph->session(),
                            registered->id,
                            settings.container,
                            settings.lease,
                            context_.task,
                            part.graph,
                            {}};
      for (const auto& [task, incarnation] : registered->incarnations) {
        local.incarnations[task.to_string()] = incarnation;
      }
      own = worker_->register_part(local);
      continue;
    }
    RegisterPartRequest request;
    request.set_session(graph->session());
    request.set_registration(registered->id);
    request.set_container(settings.container);
    request.set_lease_ms(to_ms(settings.lease));
    request.set_master(context_.task.to_string());
    *request.mutable_def() = part.graph->def;
    for (const auto& [task, incarnation] : registered->incarnations) {
      (*request.mutable_incarnations())[task.to_string()] = incarnation;
    }
    calls.add(*registered->channels[i], kRegisterPart,
              make_message(request, constant_rows(*part.graph)),
              {.deadline = deadline,
               .incarnation = registered->incarnations.at(part.task),
               .retry = step_retry()},
              part.task.to_string());
  }
  const absl::Status others = calls.wait();
  TRIREME_RETURN_IF_ERROR(own);
  TRIREME_RETURN_IF_ERROR(others);
  graph->set_registered(registered);
  return std::shared_ptr<const MasterGraph::Registered>(registered);
}

absl::Status Master::create_variables(uint64_t session, uint64_t graph,
                                      const std::vector<uint32_t>& variables,
                                      const std::vector<at::Tensor>& initial, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const auto found, find_graph(session, graph));
  const auto& def = found->placed().graph->def;
  if (variables.size() != initial.size()) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat(variables.size(), " variables and ", initial.size(), " tensors"));
  }
  std::map<TaskId, std::pair<std::vector<std::string>, std::vector<at::Tensor>>> by_task;
  for (size_t i = 0; i < variables.size(); ++i) {
    if (variables[i] >= static_cast<uint32_t>(def.variables_size())) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("the graph has no variable ", variables[i]));
    }
    auto& [names, tensors] = by_task[found->placed().variable_tasks[variables[i]]];
    names.push_back(def.variables(static_cast<int>(variables[i])).name());
    tensors.push_back(initial[i]);
  }
  const SessionSettings& settings = found->settings();
  CallGroup calls;
  absl::Status own;
  for (auto& [task, made] : by_task) {
    if (task == context_.task) {
      own = worker_->make_variables(session, settings.lease, settings.container, made.first,
                                    made.second);
      continue;
    }
    VariablesRequest request;
    request.set_container(settings.container);
    request.set_session(session);
    request.set_lease_ms(to_ms(settings.lease));
    *request.mutable_names() = {made.first.begin(), made.first.end()};
    TRIREME_ASSIGN_OR_RETURN(const auto channel, channels_.to(task));
    calls.add(*channel, kMakeVariables, make_message(request, std::move(made.second)),
              {.deadline = deadline, .retry = step_retry()}, task.to_string());
  }
  const absl::Status others = calls.wait();
  TRIREME_RETURN_IF_ERROR(own);
  return others;
}

void Master::run_step(uint64_t session, uint64_t graph, StepInputs inputs, OnStepResult done) {
  auto found = find_graph(session, graph);
  if (!found.ok()) return done(found.status());
  if (inputs.tensors.size() != (*found)->placed().graph->def.inputs()) {
    return done(make_status(ErrorCode::kInvalidArgument,
                            absl::StrCat("the graph takes ", (*found)->placed().graph->def.inputs(),
                                         " inputs and got ", inputs.tensors.size())));
  }
  if (auto registered = (*found)->registered()) {
    return start_step(session, *std::move(found), std::move(registered), std::move(inputs),
                      std::move(done));
  }
  // A task was lost: find out who is there now.
  executor_.submit([self = shared_from_this(), session, graph = *std::move(found),
                    inputs = std::move(inputs), done = std::move(done)]() mutable {
    auto registered = self->ensure_registered(graph, inputs.deadline);
    if (!registered.ok()) return done(registered.status());
    self->start_step(session, std::move(graph), *std::move(registered), std::move(inputs),
                     std::move(done));
  });
}

void Master::start_step(uint64_t session, std::shared_ptr<MasterGraph> graph,
                        std::shared_ptr<const MasterGraph::Registered> registered,
                        StepInputs inputs, OnStepResult done) {
  const uint64_t token = inputs.token;
  if (token != 0) {
    done = [self = shared_from_this(), session, token,
            done = std::move(done)](absl::StatusOr<std::vector<at::Tensor>> result) mutable {
      {
        MutexLock lock(self->mutex_);
        const auto found = self->sessions_.find(session);
        if (found != self->sessions_.end()) found->second.running.erase(token);
      }
      done(std::move(result));
    };
  }
  const auto step = make_master_step(std::move(graph), std::move(registered), worker_,
                                     std::move(inputs), std::move(done));
  if (token != 0) {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found != sessions_.end()) found->second.running[token] = step;
  }
  step->start();
}

void Master::cancel_step(uint64_t session, uint64_t token) {
  std::shared_ptr<RunningStep> step;
  {
    MutexLock lock(mutex_);
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) return;
    const auto running = found->second.running.find(token);
    if (running != found->second.running.end()) step = running->second.lock();
  }
  if (step != nullptr) step->cancel();
}

void Master::look_after_sessions() {
  struct Renewal {
    uint64_t session;
    std::set<TaskId> tasks;
    Duration lease;
  };
  std::vector<uint64_t> expired;
  std::vector<Renewal> renewals;
  std::vector<std::shared_ptr<MasterGraph>> graphs;
  {
    MutexLock lock(mutex_);
    const Time now = Clock::real().now();
    for (auto& [id, session] : sessions_) {
      for (const auto& [number, graph] : session.graphs) graphs.push_back(graph);
      if (session.until < now) {
        expired.push_back(id);
      } else if (now - session.renewed > session.settings.lease / 4) {
        session.renewed = now;
        renewals.push_back({id, session.tasks, session.settings.lease});
      }
    }
  }
  for (const auto& graph : graphs) graph->look_after_steps();
  for (uint64_t session : expired) {
    log_info(context_.task.to_string(), ": session ", format_incarnation(session),
             " has ended: its client was not heard of for its lease");
    close_session(session, after(seconds(10)));
  }
  for (const Renewal& renewal : renewals) {
    renew_at_tasks(renewal.session, renewal.tasks, renewal.lease);
  }
}

void Master::renew_at_tasks(uint64_t session, const std::set<TaskId>& tasks, Duration lease) {
  RenewSessionRequest request;
  request.set_session(session);
  request.set_lease_ms(to_ms(lease));
  for (const TaskId& task : tasks) {
    if (task == context_.task) {
      worker_->renew_session(session, lease);
      continue;
    }
    const auto channel = channels_.to(task);
    if (!channel.ok()) continue;
    (*channel)->call(kRenewSession, make_message(request),
                     {.deadline = after(lease / 4), .retry = step_retry()}, [](const Response&) {});
  }
}

}  // namespace trireme::internal
