#include "trireme/ps/ps_client.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/job_list.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/resumed_variables.h"
#include "trireme/ps/shard_rows.h"
#include "trireme/ps/sharded_pull.h"
#include "trireme/ps/sharded_push.h"
#include "trireme/ps/variable_methods.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/rpc/connect.h"
#include "trireme/tensor/codec.h"
#include "trireme/tensor/dtype.h"

// Every operation follows the same pattern. It groups the shards of its variables by server into at
// most one request per server, sends all requests at once (call_all), waits for all responses, and
// puts the results back into the order of the variables. Requests and responses list shards in the
// same order, so an answer is matched to its shard by position: for each server a counter says how
// many of its entries were consumed. The requests are kept in maps ordered by server, and call_all
// keeps the order of the calls, so the n-th response is that of the n-th server in the map.
//
// Every call may be retried after a lost request or response. Most methods are idempotent, a push
// carries an identity by which servers recognise it, and for the rest the server repeats its first
// answer (see the table of methods in variable_service.cc). ShardedPull and ShardedPush split pulls
// and pushes; the other operations are rare, and their requests are made here.
namespace trireme {
namespace {

using internal::ServerRequest;
using internal::ShardedPull;
using internal::ShardedPush;
using internal::TensorShape;
using Shard = VariableLayout::Shard;

constexpr uint64_t kSlowestBytesPerSecond = 16 << 20;  // slowest network that timeouts allow for

void set_shape(const TensorShape& shape, const std::string& name, VariableShape& proto) {
  proto.set_name(name);
  proto.set_dtype(*dtype_to_wire(shape.dtype));
  proto.mutable_sizes()->Add(shape.sizes.begin(), shape.sizes.end());
}

// Makes requests without tensors from the bodies for each server.
template <typename Body>
std::vector<ServerRequest> requests_of(const std::map<int, Body>& bodies) {
  std::vector<ServerRequest> requests;
  for (const auto& [server, body] : bodies) requests.push_back({server, make_message(body)});
  return requests;
}

// Parses the responses to the requests with these bodies. Both are in the order of the servers.
template <typename Answer, typename Body>
absl::StatusOr<std::map<int, Answer>> answers_by_server(const std::map<int, Body>& bodies,
                                                        const Responses& responses) {
  std::map<int, Answer> answers;
  size_t response = 0;
  for (const auto& [server, body] : bodies) {
    TRIREME_ASSIGN_OR_RETURN(answers[server], parse_body<Answer>(responses[response++]));
  }
  return answers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsClient>> PsClient::connect(PsClientOptions options,
                                                            Time deadline) {
  const int servers = options.spec.num_tasks("ps");
  if (servers == 0) {
    return make_status(ErrorCode::kInvalidArgument,
                       "the cluster has no ps tasks to keep variables on; add a ps job to it");
  }
  std::unique_ptr<PsClient> client(new PsClient(std::move(options)));
  for (int i = 0; i < servers; ++i) {
    const TaskId task{"ps", i};
    client->channels_.push_back(
        std::make_shared<Channel>(ChannelOptions{.address = client->options_.spec.address(task),
                                                 .task = task.to_string(),
                                                 .caller_task = client->options_.caller_task,
                                                 .credentials = client->options_.credentials,
                                                 .shared_memory = client->options_.shared_memory,
                                                 .faults = client->options_.faults}));
  }
  std::vector<Channel*> channels;
  for (auto& channel : client->channels_) channels.push_back(channel.get());
  TRIREME_RETURN_IF_ERROR(connect_all(channels, deadline).status());
  const std::vector<uint64_t>& meant = client->options_.incarnations;
  const std::vector<uint64_t> found = client->incarnations();
  for (size_t i = 0; i < meant.size() && i < found.size(); ++i) {
    if (meant[i] == found[i]) continue;
    return make_status(ErrorCode::kIncarnationChanged,
                       "the parameter server was restarted and has lost its variables",
                       {client->channels_[i]->task(), ""});
  }
  return client;
}

absl::Status PsClient::join(const JobOptions& options, Time deadline) {
  TRIREME_ASSIGN_OR_RETURN(membership_, JobMembership::join(options, channels_, deadline));
  job_ = membership_->job();
  return absl::OkStatus();
}

template <typename Body>
void PsClient::set_scope(Body& body) const {
  VariableScopeDef& scope = *body.mutable_scope();
  scope.set_job(job_.id);
  scope.set_generation(job_.generation);
  scope.set_container(options_.container);
}

std::vector<uint64_t> PsClient::incarnations() const {
  std::vector<uint64_t> incarnations;
  for (const auto& channel : channels_) incarnations.push_back(channel->incarnation());
  return incarnations;
}

CallOptions PsClient::call_options(uint64_t bytes, bool large_response) const {
  // A large message needs more time on a slow network, both for the call and for each attempt.
  const Duration extra = std::chrono::seconds(bytes / kSlowestBytesPerSecond);
  RetryPolicy retry = options_.retry;
  retry.attempt_time += extra;
  return {.deadline = after(options_.timeout + extra),
          .large_response = large_response,
          .retry = retry};
}

std::vector<TargetedCall> PsClient::make_calls(Requests requests,
                                               const CallOptions& options) const {
  std::vector<TargetedCall> calls;
  calls.reserve(requests.size());
  for (ServerRequest& request : requests) {
    TargetedCall& call = calls.emplace_back(
        TargetedCall{channels_[request.server].get(), std::move(request.message), options});
    call.options.into = std::move(request.into);
    call.options.shared = std::move(request.shared);
  }
  return calls;
}

absl::StatusOr<std::map<int, LookupVariablesResponse>> PsClient::find_shards(
    std::map<int, LookupVariablesRequest>& bodies, bool allow_missing) const {
  for (auto& [server, body] : bodies) {
    set_scope(body);
    body.set_allow_missing(allow_missing);
  }
  TRIREME_ASSIGN_OR_RETURN(
      const Responses responses,
      call_all(kLookupVariables, make_calls(requests_of(bodies), call_options(0, true))));
  return answers_by_server<LookupVariablesResponse>(bodies, responses);
}

absl::Status PsClient::delete_shards(std::map<int, DeleteVariablesRequest>& bodies) const {
  for (auto& [server, body] : bodies) set_scope(body);
  return call_all(kDeleteVariables, make_calls(requests_of(bodies), call_options(0, false)))
      .status();
}

absl::Status PsClient::check_resumed(const std::vector<PlacedVariable>& variables) {
  std::map<int, LookupVariablesRequest> bodies;
  for (const PlacedVariable& variable : variables) {
    if (variable.replaces) continue;
    for (const Shard& shard : variable.layout.shards) bodies[shard.server].add_names(shard.name);
  }
  TRIREME_ASSIGN_OR_RETURN(const auto answers, find_shards(bodies, /*allow_missing=*/true));
  std::vector<internal::ResumedShard> shards;
  for (const auto& [server, body] : bodies) {
    for (int i = 0; i < body.names_size(); ++i) {
      const LookupVariablesResponse& answer = answers.at(server);
      shards.push_back({body.names(i), server, answer.handles(i) == 0 ? 0 : answer.generations(i)});
    }
  }
  return internal::check_not_mixed(job_, shards, membership_->since());
}

absl::StatusOr<std::vector<PsVariable>> PsClient::create(
    const std::vector<PlacedVariable>& variables) {
  std::vector<PsVariable> replaced;
  for (const PlacedVariable& variable : variables) {
    if (variable.replaces) replaced.push_back(*variable.replaces);
  }
  if (!replaced.empty()) TRIREME_RETURN_IF_ERROR(remove(replaced));
  if (membership_ != nullptr && membership_->resumed()) {
    TRIREME_RETURN_IF_ERROR(check_resumed(variables));
  }
  std::map<int, CreateVariablesRequest> bodies;
  std::map<int, std::vector<at::Tensor>> contents;
  uint64_t bytes = 0;
  for (const PlacedVariable& variable : variables) {
    const VariableLayout& layout = variable.layout;
    at::Tensor initial;
    if (variable.initial.defined()) {
      TRIREME_ASSIGN_OR_RETURN(initial, prepare_to_send(variable.initial));
      const TensorShape given = TensorShape::of(initial), expected{layout.dtype, layout.sizes};
      if (given != expected) {
        return make_status(ErrorCode::kInvalidArgument,
                           absl::StrCat("its initial value is ", internal::to_string(given),
                                        ", but its layout says ", internal::to_string(expected)),
                           layout.object());
      }
    }
    for (const Shard& shard : layout.shards) {
      CreateVariablesRequest& body = bodies[shard.server];
      auto& made = *body.add_variables();
      set_shape(internal::shard_shape(layout, shard), shard.name, *made.mutable_shape());
      if (initial.defined()) {
        contents[shard.server].push_back(internal::shard_slice(initial, layout, shard));
        bytes += contents[shard.server].back().nbytes();
      } else {
        made.set_fill(variable.fill);
      }
    }
  }
  Requests requests;
  for (auto& [server, body] : bodies) {
    set_scope(body);
    body.set_member(member());
    requests.push_back({server, make_message(body, internal::pack(contents[server]))});
  }
  TRIREME_ASSIGN_OR_RETURN(
      const Responses responses,
      call_all(kCreateVariables, make_calls(std::move(requests), call_options(bytes, true))));
  TRIREME_ASSIGN_OR_RETURN(const auto answers,
                           answers_by_server<CreateVariablesResponse>(bodies, responses));
  std::vector<PsVariable> result;
  std::map<int, int> next;  // number of handles consumed, by server
  for (const PlacedVariable& variable : variables) {
    std::vector<uint64_t> handles;
    for (const Shard& shard : variable.layout.shards) {
      handles.push_back(answers.at(shard.server).handles(next[shard.server]++));
    }
    result.emplace_back(variable.layout, std::move(handles));
  }
  return result;
}

absl::Status PsClient::remove_leftovers(const ShardNames& shards) {
  TRIREME_ASSIGN_OR_RETURN(const std::vector<ListedJob> jobs,
                           list_jobs(*channels_.front(), call_options(0, true).deadline));
  const auto listed = std::ranges::find(jobs, job_.id, &ListedJob::job);
  if (listed != jobs.end() && listed->members > 1) return absl::OkStatus();
  std::map<int, LookupVariablesRequest> bodies;
  for (const auto& [server, names] : shards) {
    for (const std::string& name : names) bodies[server].add_names(name);
  }
  TRIREME_ASSIGN_OR_RETURN(const auto answers, find_shards(bodies, /*allow_missing=*/true));
  std::map<int, DeleteVariablesRequest> deletions;
  for (const auto& [server, answer] : answers) {
    for (int i = 0; i < answer.handles_size(); ++i) {
      const bool is_own = answer.generations(i) == job_.generation && answer.members(i) == member();
      if (answer.handles(i) != 0 && is_own) deletions[server].add_handles(answer.handles(i));
    }
  }
  return delete_shards(deletions);
}

absl::StatusOr<std::vector<PsVariable>> PsClient::open(const std::vector<VariableLayout>& layouts) {
  std::map<int, LookupVariablesRequest> bodies;
  for (const VariableLayout& layout : layouts) {
    for (const Shard& shard : layout.shards) bodies[shard.server].add_names(shard.name);
  }
  TRIREME_ASSIGN_OR_RETURN(const auto answers, find_shards(bodies, /*allow_missing=*/false));
  std::vector<PsVariable> result;
  std::map<int, int> next;  // number of handles consumed, by server
  for (const VariableLayout& layout : layouts) {
    std::vector<uint64_t> handles;
    for (const Shard& shard : layout.shards) {
      const LookupVariablesResponse& answer = answers.at(shard.server);
      const int i = next[shard.server]++;
      VariableShape expected;
      set_shape(internal::shard_shape(layout, shard), shard.name, expected);
      if (answer.shapes(i).SerializeAsString() != expected.SerializeAsString()) {
        return make_status(ErrorCode::kFailedPrecondition,
                           absl::StrCat("/job:ps/task:", shard.server, " has '", shard.name,
                                        "' with another shape or dtype; check that all programs "
                                        "create it with the same partitioner"),
                           layout.object());
      }
      handles.push_back(answer.handles(i));
    }
    result.emplace_back(layout, std::move(handles));
  }
  return result;
}

absl::Status PsClient::set_optimizer(const std::vector<PsVariable>& variables,
                                     const internal::UpdateRule& rule) {
  std::map<int, SetOptimizerRequest> bodies;
  for (const PsVariable& variable : variables) {
    const auto& shards = variable.layout().shards;
    for (size_t i = 0; i < shards.size(); ++i) {
      bodies[shards[i].server].add_handles(variable.handle(i));
    }
  }
  for (auto& [server, body] : bodies) {
    set_scope(body);
    body.set_rule(rule.name());
    for (const auto& [name, value] : rule.options()) (*body.mutable_options())[name] = value;
  }
  return call_all(kSetOptimizer, make_calls(requests_of(bodies), call_options(0, false))).status();
}

absl::Status PsClient::remove(const std::vector<PsVariable>& variables) {
  std::map<int, DeleteVariablesRequest> bodies;
  for (const PsVariable& variable : variables) {
    const auto& shards = variable.layout().shards;
    for (size_t i = 0; i < shards.size(); ++i) {
      bodies[shards[i].server].add_handles(variable.handle(i));
    }
  }
  return delete_shards(bodies);
}

template <typename Body>
absl::Status PsClient::broadcast(const char* method, const Body& body, const CallOptions& options) {
  Requests requests;
  for (int i = 0; i < servers(); ++i) requests.push_back({i, make_message(body)});
  return call_all(method, make_calls(std::move(requests), options)).status();
}

absl::Status PsClient::drop_container() {
  DropContainerRequest request;
  set_scope(request);
  return broadcast(kDropContainer, request, call_options(0, false));
}

absl::Status PsClient::begin_writer(uint64_t writer) {
  if (membership_ != nullptr) return membership_->begin_writer(writer);
  BeginWriterRequest request;
  request.set_writer(writer);
  return broadcast(kBeginWriter, request, call_options(0, false));
}

absl::Status PsClient::end_writer(uint64_t writer, Duration timeout) {
  if (membership_ != nullptr) return membership_->end_writer(writer, timeout);
  EndWriterRequest request;
  request.set_writer(writer);
  CallOptions options = call_options(0, false);
  options.deadline = after(timeout);
  options.retry.reset();  // a lost server must not delay the caller
  return broadcast(kEndWriter, request, options);
}

void PsClient::start_pull(std::vector<PsPull> pulls, bool with_versions, Done<Pulled> done) {
  absl::StatusOr<ShardedPull> split = ShardedPull::split(std::move(pulls));
  if (!split.ok()) return done(split.status());
  // Large slices of sharded variables are received straight into the result. Not under injected
  // faults: these can deliver two responses to one call, which must not share memory.
  Requests requests = split->make_requests(
      /*in_place=*/options_.faults == nullptr,
      [this](int server) { return channels_[server]->shares_memory(); });
  const CallOptions options = call_options(split->bytes(), split->has_large_response());
  call_all(kPullVariables, make_calls(std::move(requests), options),
           [pull = *std::move(split), with_versions,
            done = std::move(done)](absl::StatusOr<Responses> responses) mutable {
             done([&]() -> absl::StatusOr<Pulled> {
               TRIREME_RETURN_IF_ERROR(responses.status());
               Pulled pulled;
               if (with_versions) {
                 TRIREME_ASSIGN_OR_RETURN(pulled.versions, pull.versions(*responses));
               }
               TRIREME_ASSIGN_OR_RETURN(pulled.values, pull.assemble(*responses));
               return pulled;
             }());
           });
}

void PsClient::pull(std::vector<PsPull> pulls, Done<std::vector<at::Tensor>> done) {
  start_pull(std::move(pulls), /*with_versions=*/false,
             [done = std::move(done)](absl::StatusOr<Pulled> pulled) mutable {
               if (!pulled.ok()) return done(pulled.status());
               done(std::move(pulled->values));
             });
}

absl::StatusOr<std::vector<at::Tensor>> PsClient::pull(std::vector<PsPull> pulls) {
  return call_and_wait<absl::StatusOr<std::vector<at::Tensor>>>(
      [&](Done<std::vector<at::Tensor>> done) { pull(std::move(pulls), std::move(done)); });
}

absl::StatusOr<PsClient::Pulled> PsClient::pull_with_versions(std::vector<PsPull> pulls) {
  return call_and_wait<absl::StatusOr<Pulled>>([&](Done<Pulled> done) {
    start_pull(std::move(pulls), /*with_versions=*/true, std::move(done));
  });
}

void PsClient::start_push(const std::vector<PsPush>& pushes, const PushOptions& options,
                          bool with_versions, Done<std::vector<ShardVersions>> done) {
  absl::StatusOr<ShardedPush> split = ShardedPush::split(pushes);
  if (!split.ok()) return done(split.status());
  std::vector<TargetedCall> calls =
      make_calls(split->make_requests(options), call_options(split->bytes(), false));
  call_all(kPushVariables, std::move(calls),
           [push = *std::move(split), with_versions,
            done = std::move(done)](absl::StatusOr<Responses> responses) mutable {
             if (!responses.ok()) return done(responses.status());
             if (!with_versions) return done(std::vector<ShardVersions>());
             done(push.versions(*responses));
           });
}

void PsClient::push(const std::vector<PsPush>& pushes, const PushOptions& options,
                    absl::AnyInvocable<void(absl::Status)> done) {
  start_push(pushes, options, /*with_versions=*/false,
             [done = std::move(done)](absl::StatusOr<std::vector<ShardVersions>> pushed) mutable {
               done(pushed.status());
             });
}

absl::Status PsClient::push(const std::vector<PsPush>& pushes, const PushOptions& options) {
  return call_and_wait<absl::Status>(
      [&](absl::AnyInvocable<void(absl::Status)> done) { push(pushes, options, std::move(done)); });
}

absl::StatusOr<std::vector<ShardVersions>> PsClient::push_with_versions(
    const std::vector<PsPush>& pushes, const PushOptions& options) {
  return call_and_wait<absl::StatusOr<std::vector<ShardVersions>>>(
      [&](Done<std::vector<ShardVersions>> done) {
        start_push(pushes, options, /*with_versions=*/true, std::move(done));
      });
}

void PsClient::push_then_pull(const std::vector<PsPush>& pushes, const PushOptions& options,
                              std::vector<PsPull> pulls,
                              Done<std::optional<std::vector<at::Tensor>>> done) {
  absl::StatusOr<ShardedPush> push = ShardedPush::split(pushes);
  if (!push.ok()) return done(push.status());
  absl::StatusOr<ShardedPull> pull = ShardedPull::split(std::move(pulls));
  if (!pull.ok()) return done(pull.status());
  const bool pulls_too = push->add(*pull);
  const CallOptions call = call_options(push->bytes(), /*large_response=*/false);
  call_all(kPushVariables, make_calls(push->make_requests(options), call),
           [servers = push->servers(), pull = *std::move(pull), pulls_too,
            done = std::move(done)](absl::StatusOr<Responses> responses) mutable {
             if (!responses.ok()) return done(responses.status());
             if (!pulls_too) return done(std::optional<std::vector<at::Tensor>>());
             Responses read;
             for (size_t i = 0; i < servers.size(); ++i) {
               if (pull.handles(servers[i])) read.push_back(std::move((*responses)[i]));
             }
             done(pull.assemble(read));
           });
}

}  // namespace trireme
