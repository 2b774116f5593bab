#include "trireme/runtime/master.h"

#include <map>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/rpc/call_group.h"
#include "trireme/rpc/timer.h"

// The life of a graph at its master:
//
// 1. RegisterGraph. The graph is compiled, placed on the devices of the tasks that it names, and
//    cut into one part for each task (place_and_cut). If a task is not up, nothing is registered
//    and the client is told what is missing; it asks again for as long as its user waits.
// 2. Registration. The master learns the current incarnation of each task and sends it its part,
//    together with the incarnations of all tasks, so that parts know which tasks they may send to
//    (ensure_registered). Each registration has a new id, which is never used again.
// 3. Steps. RunStep starts a MasterStep over the current registration. In the usual case the master
//    makes one call to each task and no others.
// 4. Loss of a task. A step that fails because a task is gone or was restarted invalidates the
//    registration. The next step registers the parts again, with the incarnations of that time. The
//    other tasks are asked to drop the old parts (master_registrations.cc).
// 5. The end. A graph is evicted when its session has used many others since, or dropped when the
//    session is closed or its lease runs out. The client of an evicted graph is told so by RunStep
//    and registers it again.
//
// A client renews its session at the master; the master renews it, in turn, at every task that
// holds something of the session. So a task frees what it holds even if the master is lost.
namespace trireme::internal {
namespace {

using std::chrono::seconds;

// Time between two runs of the periodic work.
constexpr auto kSessionCheck = std::chrono::milliseconds(200);

}  // namespace

Master::Master(TaskContext& context, PeerChannels& channels, std::shared_ptr<Worker> worker,
               Executor& executor)
    : context_(context),
      worker_(std::move(worker)),
      executor_(executor),
      tasks_(context, channels, worker_),
      devices_(context, channels),
      next_registration_(new_incarnation()) {}

void Master::start() {
  run_at(after(kSessionCheck), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || self->sessions_.stopped()) return;
    self->expire_and_renew_sessions();
    self->start();
  });
}

void Master::stop() {
  sessions_.stop();
}

absl::StatusOr<uint64_t> Master::open_session(uint64_t session, SessionSettings settings,
                                              Time deadline) {
  const bool joins = !settings.job.id.empty() && settings.member == nullptr;
  if (joins) return join_and_open(session, std::move(settings), deadline);
  if (settings.member != nullptr) settings.member->renew(settings.job.sent);
  TRIREME_RETURN_IF_ERROR(sessions_.open(session, settings));
  return settings.member == nullptr ? 0 : settings.member->generation();
}

absl::StatusOr<uint64_t> Master::join_and_open(uint64_t session, SessionSettings settings,
                                               Time deadline) {
  if (!context_.join_job) {
    return make_status(ErrorCode::kUnimplemented, "this server holds no variables",
                       {context_.task.to_string(), ""});
  }
  // Joining waits for the server with the counter. While that server is silent, the renewals of one
  // session would otherwise occupy all threads that may wait.
  TRIREME_RETURN_IF_ERROR(sessions_.begin_join(session, settings));
  const absl::Cleanup joined = [&] { sessions_.end_join(session); };
  // An earlier request may have joined the job since the caller looked.
  settings.member = sessions_.job_of(session);
  if (settings.member != nullptr) return open_session(session, std::move(settings), deadline);
  TRIREME_ASSIGN_OR_RETURN(settings.member, context_.join_job(settings.job, deadline));
  const absl::Status opened = sessions_.open(session, settings);
  // The client may have closed the session meanwhile. A server that stops does not leave the job,
  // so that the variables are kept.
  if (error_code(opened) == ErrorCode::kNotFound) settings.member->leave();
  if (!opened.ok()) return opened;
  return settings.member->generation();
}

void Master::close_session(uint64_t session, Time deadline) {
  sessions_.reject(session);
  const auto member = sessions_.job_of(session);
  auto tasks = sessions_.close(session);
  if (!tasks) return;
  end_on_tasks(session, *std::move(tasks), deadline);
  if (member != nullptr) executor_.submit([member] { member->leave(); });
}

void Master::end_on_tasks(uint64_t session, std::set<TaskId> tasks, Time deadline) {
  registrations_.forget_session(session);
  // Ends the session on the master's own worker first. Its parts then end before the other tasks
  // hear of it, so that the error of a step in flight names this task. The own worker is always
  // asked, since it may hold something that no graph recorded.
  if (const auto own = tasks_.to(context_.task); own.ok()) (*own)->end_session(session, deadline);
  tasks.erase(context_.task);
  for (const TaskId& task : tasks) {
    if (const auto stub = tasks_.to(task); stub.ok()) (*stub)->end_session(session, deadline);
  }
}

absl::StatusOr<Master::NewGraph> Master::register_graph(uint64_t session, uint64_t graph,
                                                        std::shared_ptr<const GraphData> data,
                                                        Time deadline) {
  // An earlier attempt of the same call may have created the graph.
  TRIREME_ASSIGN_OR_RETURN(auto known, sessions_.look_up(session, graph));
  NewGraph result;
  std::shared_ptr<MasterGraph> made = std::move(known.graph);
  if (made == nullptr) {
    TRIREME_ASSIGN_OR_RETURN(
        made, place_and_cut(session, known.settings, std::move(data), deadline, result.waits_for));
    if (made == nullptr) return result;
  }
  TRIREME_ASSIGN_OR_RETURN(const auto registered, ensure_registered(made, deadline));
  TRIREME_ASSIGN_OR_RETURN(result.variables, find_variables(*made, *registered, deadline));

  std::set<TaskId> tasks;
  for (const GraphPart& part : made->parts()) tasks.insert(part.task);
  for (const VariablePlace& variable : result.variables) tasks.insert(variable.task);
  TRIREME_ASSIGN_OR_RETURN(result.graph,
                           sessions_.add_graph(session, graph, std::move(made), tasks));
  return result;
}

absl::StatusOr<std::shared_ptr<MasterGraph>> Master::place_and_cut(
    uint64_t session, const SessionSettings& settings, std::shared_ptr<const GraphData> data,
    Time deadline, std::string& waits_for) {
  TRIREME_ASSIGN_OR_RETURN(const auto plan, compile(data));
  TRIREME_ASSIGN_OR_RETURN(auto found, devices_.find(data->def, deadline));
  waits_for = std::move(found.waits_for);
  if (!waits_for.empty()) return nullptr;
  PlacementOptions options;
  options.master = context_.task;
  options.soft = !settings.strict_placement;
  options.tasks = std::move(found.devices);
  TRIREME_ASSIGN_OR_RETURN(PlacedGraph placed, place(*plan, options));
  std::vector<GraphPart> parts = cut(placed, context_.task);
  return std::make_shared<MasterGraph>(session, settings, std::move(placed), std::move(parts));
}

absl::StatusOr<std::vector<VariablePlace>> Master::find_variables(
    const MasterGraph& graph, const MasterGraph::Registered& registered, Time deadline) {
  struct OnTask {
    std::vector<std::string> names;
    std::vector<size_t> places;  // index of each variable in the result
  };
  std::vector<VariablePlace> places;
  std::map<TaskId, OnTask> by_task;
  const auto& def = graph.placed().graph->def;
  for (int i = 0; i < def.variables_size(); ++i) {
    const TaskId& task = graph.placed().variable_tasks[i];
    const std::string& name = def.variables(i).name();
    const auto incarnation = registered.incarnations.find(task);
    OnTask& on_task = by_task[task];
    on_task.names.push_back(name);
    on_task.places.push_back(places.size());
    places.push_back({name, task,
                      incarnation == registered.incarnations.end() ? 0 : incarnation->second,
                      false});
  }
  const SessionSettings& settings = graph.settings();
  for (const auto& [task, variables] : by_task) {
    if (settings.member != nullptr) {
      // The task need not have a part of the graph.
      const auto known = registered.incarnations.find(task);
      uint64_t incarnation = known == registered.incarnations.end() ? 0 : known->second;
      if (incarnation == 0) {
        TRIREME_ASSIGN_OR_RETURN(const auto connected, tasks_.connect(task, deadline));
        incarnation = connected->incarnation();
      }
      TRIREME_RETURN_IF_ERROR(settings.member->begin(task, incarnation, deadline));
    }
    TRIREME_ASSIGN_OR_RETURN(const auto stub, tasks_.to(task));
    TRIREME_ASSIGN_OR_RETURN(const std::vector<bool> exists,
                             stub->find_variables(settings.scope(), variables.names, deadline));
    for (size_t i = 0; i < variables.places.size() && i < exists.size(); ++i) {
      places[variables.places[i]].exists = exists[i];
    }
  }
  return places;
}

absl::StatusOr<std::shared_ptr<const MasterGraph::Registered>> Master::ensure_registered(
    const std::shared_ptr<MasterGraph>& graph, Time deadline) {
  MutexLock lock(registering_);
  if (auto registered = graph->registered()) return registered;
  auto registered = std::make_shared<MasterGraph::Registered>();
  registered->id = next_registration_++;
  registered->incarnations[context_.task] = context_.incarnation;
  // Parts send only to the incarnations that run now. A task that is restarted later does not know
  // the registration and must not get values of its steps.
  for (const GraphPart& part : graph->parts()) {
    TRIREME_ASSIGN_OR_RETURN(auto task, tasks_.connect(part.task, deadline));
    if (const auto& member = graph->settings().member) {
      TRIREME_RETURN_IF_ERROR(member->begin(part.task, task->incarnation(), deadline));
    }
    registered->incarnations[part.task] = task->incarnation();
    registered->tasks.push_back(std::move(task));
  }
  registrations_.add(graph->session(), registered);
  TRIREME_RETURN_IF_ERROR(register_parts(*graph, *registered, deadline));
  graph->set_registered(registered);
  return std::shared_ptr<const MasterGraph::Registered>(registered);
}

absl::Status Master::register_parts(const MasterGraph& graph,
                                    const MasterGraph::Registered& registered, Time deadline) {
  Worker::NewPart part;
  part.session = graph.session();
  part.registration = registered.id;
  part.scope = graph.settings().scope();
  part.lease = graph.settings().lease;
  part.master = context_.task;
  for (const auto& [task, incarnation] : registered.incarnations) {
    part.incarnations[task.to_string()] = incarnation;
  }
  return call_each_and_wait(graph.parts().size(), [&](size_t i, TaskStub::OnStatus done) {
    part.graph = graph.parts()[i].graph;
    registered.tasks[i]->register_part(part, deadline, std::move(done));
  });
}

absl::Status Master::create_variables(uint64_t session, uint64_t graph,
                                      const std::vector<uint32_t>& variables,
                                      const std::vector<at::Tensor>& initial, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(const auto found, sessions_.find_graph(session, graph));
  if (found == nullptr) {
    return make_status(ErrorCode::kNotFound,
                       absl::StrCat("cannot create variables: graph ", graph,
                                    " is not registered, or is no longer registered"));
  }
  const auto& def = found->placed().graph->def;
  if (variables.size() != initial.size()) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("cannot create variables: the request names ", variables.size(),
                                    " variables and carries ", initial.size(), " tensors"));
  }
  const SessionSettings& settings = found->settings();
  std::map<TaskId, NewVariables> by_task;
  for (size_t i = 0; i < variables.size(); ++i) {
    if (variables[i] >= static_cast<uint32_t>(def.variables_size())) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("the graph has no variable ", variables[i]));
    }
    NewVariables& made = by_task[found->placed().variable_tasks[variables[i]]];
    const proto::Variable& variable = def.variables(static_cast<int>(variables[i]));
    made.names.push_back(variable.name());
    made.devices.push_back(variable.device());
    made.initial.push_back(initial[i]);
  }
  std::vector<std::pair<std::shared_ptr<TaskStub>, NewVariables>> calls;
  for (auto& [task, made] : by_task) {
    made.session = session;
    made.lease = settings.lease;
    made.scope = settings.scope();
    TRIREME_ASSIGN_OR_RETURN(auto stub, tasks_.to(task));
    calls.emplace_back(std::move(stub), std::move(made));
  }
  return call_each_and_wait(calls.size(), [&](size_t i, TaskStub::OnStatus done) {
    calls[i].first->make_variables(std::move(calls[i].second), deadline, std::move(done));
  });
}

absl::StatusOr<std::shared_ptr<MasterGraph>> Master::find_graph(uint64_t session, uint64_t graph) {
  return sessions_.find_graph(session, graph);
}

void Master::run_step(std::shared_ptr<MasterGraph> graph, StepInputs inputs, OnStepResult done) {
  const auto& def = graph->placed().graph->def;
  if (inputs.tensors.size() != def.inputs()) {
    return done(make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("the graph takes ", def.inputs(), " inputs and got ", inputs.tensors.size())));
  }
  if (auto registered = graph->registered()) {
    return start_step(std::move(graph), std::move(registered), std::move(inputs), std::move(done));
  }
  // A task was lost. Registering again waits for calls to other tasks, so it must not happen on
  // this thread, which serves many calls.
  executor_.submit([self = shared_from_this(), graph = std::move(graph), inputs = std::move(inputs),
                    done = std::move(done)]() mutable {
    auto registered = self->ensure_registered(graph, inputs.deadline);
    if (!registered.ok()) return done(registered.status());
    self->start_step(std::move(graph), *std::move(registered), std::move(inputs), std::move(done));
  });
}

void Master::start_step(std::shared_ptr<MasterGraph> graph,
                        std::shared_ptr<const MasterGraph::Registered> registered,
                        StepInputs inputs, OnStepResult done) {
  const uint64_t session = graph->session();
  const uint64_t token = inputs.token;
  if (token != 0) {
    done = [self = shared_from_this(), session, token,
            done = std::move(done)](absl::StatusOr<std::vector<at::Tensor>> result) mutable {
      self->sessions_.remove_step(session, token);
      done(std::move(result));
    };
  }
  const auto step = make_master_step(std::move(graph), std::move(registered), worker_,
                                     std::move(inputs), std::move(done));
  if (token != 0 && !sessions_.add_step(session, token, step)) return step->cancel();
  step->start();
}

void Master::cancel_step(uint64_t session, uint64_t token) {
  if (const auto step = sessions_.cancel_step(session, token)) step->cancel();
}

void Master::expire_and_renew_sessions() {
  const MasterSessions::Review review = sessions_.review(Clock::real().now());
  for (const auto& graph : review.graphs) graph->check_steps();
  registrations_.release_unused();
  for (uint64_t session : review.expired) {
    log_info(context_.task.to_string(), ": session ", format_incarnation(session),
             " has ended: its client did not renew the lease in time");
    // The lease of its job runs out too. The session has not left the job, so that its variables
    // are kept for the next program.
    if (auto tasks = sessions_.close(session)) {
      end_on_tasks(session, *std::move(tasks), after(seconds(10)));
    }
  }
  for (const MasterSessions::Renewal& renewal : review.renewals) {
    for (const TaskId& task : renewal.tasks) {
      const auto stub = tasks_.to(task);
      if (stub.ok()) (*stub)->renew_session(renewal.session, renewal.lease);
    }
  }
}

}  // namespace trireme::internal
