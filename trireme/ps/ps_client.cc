#include "trireme/ps/ps_client.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/kernels.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/variable_service.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/connect.h"
#include "trireme/tensor/buffer_pool.h"
#include "trireme/tensor/codec.h"
#include "trireme/tensor/dtype.h"

namespace trireme {
namespace {

using internal::Packing;
using internal::TensorShape;
using Shard = VariableLayout::Shard;

constexpr uint64_t kSlowest = 16 << 20;  // bytes per second of the slowest network

Origin object(const VariableLayout& layout) {
  return {"", "variable '" + layout.name + "'"};
}

TensorShape shape_of(const VariableLayout& layout, const Shard& shard) {
  return {layout.dtype, layout.shard_sizes(shard)};
}

void set_shape(const TensorShape& shape, const std::string& name, VariableShape& proto) {
  proto.set_name(name);
  proto.set_dtype(*dtype_to_wire(shape.dtype));
  proto.mutable_sizes()->Add(shape.sizes.begin(), shape.sizes.end());
}

// The part of a whole value that a shard holds.
at::Tensor part_of(const at::Tensor& value, const VariableLayout& layout, const Shard& shard) {
  return layout.shards.size() == 1 ? value : value.narrow(0, shard.rows.first, shard.rows.count);
}

// Row ids, by the shard that holds them.
struct RowsOfShard {
  at::Tensor ids;                  // within the shard
  std::vector<int64_t> positions;  // in the whole list; empty if it is all of it, in order
};

absl::StatusOr<std::vector<RowsOfShard>> split_ids(const at::Tensor& rows,
                                                   const VariableLayout& layout) {
  if (layout.sizes.empty()) {
    return make_status(ErrorCode::kInvalidArgument, "a scalar has no rows", object(layout));
  }
  if (!c10::isIntegralType(rows.scalar_type(), /*includeBool=*/false)) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("row ids have to be whole numbers, not ", dtype_name(rows.scalar_type())),
        object(layout));
  }
  const at::Tensor ids = rows.detach().to(c10::kCPU, c10::kLong).reshape({-1}).contiguous();
  const int64_t* id = static_cast<const int64_t*>(ids.const_data_ptr());
  const int64_t all = layout.sizes[0], shards = layout.shards.size();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (id[i] >= 0 && id[i] < all) continue;
    return make_status(ErrorCode::kOutOfRange,
                       absl::StrCat("there is no row ", id[i], "; it has ", all), object(layout));
  }
  std::vector<RowsOfShard> split(shards);
  if (shards == 1) {
    split[0].ids = ids;
    return split;
  }
  for (int64_t i = 0; i < ids.numel(); ++i) {
    split[shard_of_row(id[i], all, shards)].positions.push_back(i);
  }
  for (int64_t s = 0; s < shards; ++s) {
    const auto& positions = split[s].positions;
    split[s].ids = BufferPool::shared().empty({static_cast<int64_t>(positions.size())}, c10::kLong);
    int64_t* local = static_cast<int64_t*>(split[s].ids.data_ptr());
    for (size_t k = 0; k < positions.size(); ++k) {
      local[k] = id[positions[k]] - layout.shards[s].rows.first;
    }
  }
  return split;
}

// The same error for all: which server said what, for the first that did not do it.
template <typename Response>
absl::StatusOr<Response> parsed(const std::map<int, Message>& responses, int server) {
  return parse_body<Response>(responses.at(server));
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
        std::make_unique<Channel>(ChannelOptions{.address = client->options_.spec.address(task),
                                                 .task = task.to_string(),
                                                 .caller_task = client->options_.caller_task,
                                                 .credentials = client->options_.credentials,
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
                       "it was started again and has lost its variables",
                       {client->channels_[i]->task(), ""});
  }
  return client;
}

std::vector<uint64_t> PsClient::incarnations() const {
  std::vector<uint64_t> incarnations;
  for (const auto& channel : channels_) incarnations.push_back(channel->incarnation());
  return incarnations;
}

CallOptions PsClient::call_options(uint64_t bytes, bool large_response) const {
  const Duration extra = std::chrono::seconds(bytes / kSlowest);
  RetryPolicy retry = options_.retry;
  retry.attempt_time += extra;
  return {.deadline = after(options_.timeout + extra),
          .large_response = large_response,
          .retry = retry};
}

void PsClient::call(const char* method, Requests requests, CallOptions options,
                    Done<Responses> done, std::map<int, Destination> into) {
  if (requests.empty()) return done(Responses());
  struct Pending {
    Mutex mutex;
    size_t left ABSL_GUARDED_BY(mutex) = 0;
    Responses responses ABSL_GUARDED_BY(mutex);
    absl::Status status ABSL_GUARDED_BY(mutex);
    Done<Responses> done;
  };
  auto pending = std::make_shared<Pending>();
  pending->done = std::move(done);
  {
    MutexLock lock(pending->mutex);
    pending->left = requests.size();
  }
  for (auto& [server, request] : requests) {
    options.into = nullptr;
    if (const auto found = into.find(server); found != into.end()) options.into = found->second;
    channels_[server]->call(method, std::move(request), options,
                            [pending, server = server](Response response) {
                              absl::StatusOr<Responses> result;
                              {
                                MutexLock lock(pending->mutex);
                                if (response.ok()) {
                                  pending->responses[server] = *std::move(response);
                                } else {
                                  pending->status.Update(response.status());
                                }
                                if (--pending->left > 0) return;
                                if (pending->status.ok()) {
                                  result = std::move(pending->responses);
                                } else {
                                  result = pending->status;
                                }
                              }
                              pending->done(std::move(result));
                            });
  }
}

absl::StatusOr<PsClient::Responses> PsClient::call(const char* method, Requests requests,
                                                   const CallOptions& options) {
  auto answer = std::make_shared<std::promise<absl::StatusOr<Responses>>>();
  call(method, std::move(requests), options,
       [answer](absl::StatusOr<Responses> responses) { answer->set_value(std::move(responses)); });
  return answer->get_future().get();  // it comes by the calls' deadline
}

absl::StatusOr<std::vector<PsVariable>> PsClient::create(
    const std::vector<NewVariable>& variables) {
  std::map<int, CreateVariablesRequest> bodies;
  std::map<int, std::vector<at::Tensor>> contents;
  uint64_t bytes = 0;
  for (const NewVariable& variable : variables) {
    const VariableLayout& layout = variable.layout;
    at::Tensor initial;
    if (variable.initial.defined()) {
      TRIREME_ASSIGN_OR_RETURN(initial, prepare_to_send(variable.initial));
      const TensorShape given = TensorShape::of(initial), expected{layout.dtype, layout.sizes};
      if (given != expected) {
        return make_status(ErrorCode::kInvalidArgument,
                           absl::StrCat("its initial value is ", internal::to_string(given),
                                        " where ", internal::to_string(expected), " belongs"),
                           object(layout));
      }
    }
    for (const Shard& shard : layout.shards) {
      CreateVariablesRequest& body = bodies[shard.server];
      body.set_container(options_.container);
      auto& made = *body.add_variables();
      set_shape(shape_of(layout, shard), shard.name, *made.mutable_shape());
      if (initial.defined()) {
        contents[shard.server].push_back(part_of(initial, layout, shard));
        bytes += contents[shard.server].back().nbytes();
      } else {
        made.set_fill(variable.fill);
      }
    }
  }
  Requests requests;
  for (const auto& [server, body] : bodies) {
    std::vector<TensorShape> shapes;
    for (const at::Tensor& tensor : contents[server]) shapes.push_back(TensorShape::of(tensor));
    requests[server] = make_message(body, Packing(std::move(shapes)).pack(contents[server]));
  }
  TRIREME_ASSIGN_OR_RETURN(const Responses responses,
                           call(kCreateVariables, std::move(requests), call_options(bytes, true)));
  std::map<int, CreateVariablesResponse> answers;
  for (const auto& [server, body] : bodies) {
    TRIREME_ASSIGN_OR_RETURN(answers[server], parsed<CreateVariablesResponse>(responses, server));
  }
  std::vector<PsVariable> result;
  std::map<int, int> next;
  for (const NewVariable& variable : variables) {
    auto state = std::make_shared<PsVariable::State>();
    state->layout = variable.layout;
    for (const Shard& shard : variable.layout.shards) {
      state->handles.push_back(answers[shard.server].handles(next[shard.server]++));
    }
    result.push_back(PsVariable(std::move(state)));
  }
  return result;
}

absl::StatusOr<std::vector<PsVariable>> PsClient::open(const std::vector<VariableLayout>& layouts) {
  std::map<int, LookupVariablesRequest> bodies;
  for (const VariableLayout& layout : layouts) {
    for (const Shard& shard : layout.shards) bodies[shard.server].add_names(shard.name);
  }
  Requests requests;
  for (auto& [server, body] : bodies) {
    body.set_container(options_.container);
    requests[server] = make_message(body);
  }
  TRIREME_ASSIGN_OR_RETURN(const Responses responses,
                           call(kLookupVariables, std::move(requests), call_options(0, true)));
  std::map<int, LookupVariablesResponse> answers;
  for (const auto& [server, body] : bodies) {
    TRIREME_ASSIGN_OR_RETURN(answers[server], parsed<LookupVariablesResponse>(responses, server));
  }
  std::vector<PsVariable> result;
  std::map<int, int> next;
  for (const VariableLayout& layout : layouts) {
    auto state = std::make_shared<PsVariable::State>();
    state->layout = layout;
    for (const Shard& shard : layout.shards) {
      const LookupVariablesResponse& answer = answers[shard.server];
      const int i = next[shard.server]++;
      VariableShape expected;
      set_shape(shape_of(layout, shard), shard.name, expected);
      if (answer.shapes(i).SerializeAsString() != expected.SerializeAsString()) {
        return make_status(ErrorCode::kFailedPrecondition,
                           absl::StrCat("/job:ps/task:", shard.server, " has '", shard.name,
                                        "' with another shape or dtype; was it made with another "
                                        "partitioner?"),
                           object(layout));
      }
      state->handles.push_back(answer.handles(i));
    }
    result.push_back(PsVariable(std::move(state)));
  }
  return result;
}

absl::Status PsClient::set_optimizer(const std::vector<PsVariable>& variables,
                                     const internal::UpdateRule& rule) {
  std::map<int, SetOptimizerRequest> bodies;
  for (const PsVariable& variable : variables) {
    const auto& shards = variable.layout().shards;
    for (size_t i = 0; i < shards.size(); ++i) {
      bodies[shards[i].server].add_handles(variable.state_->handles[i]);
    }
  }
  Requests requests;
  for (auto& [server, body] : bodies) {
    body.set_rule(rule.name());
    for (const auto& [name, value] : rule.options()) (*body.mutable_options())[name] = value;
    requests[server] = make_message(body);
  }
  return call(kSetOptimizer, std::move(requests), call_options(0, false)).status();
}

absl::Status PsClient::remove(const std::vector<PsVariable>& variables) {
  std::map<int, DeleteVariablesRequest> bodies;
  for (const PsVariable& variable : variables) {
    for (const Shard& shard : variable.layout().shards) {
      bodies[shard.server].add_names(shard.name);
    }
  }
  Requests requests;
  for (auto& [server, body] : bodies) {
    body.set_container(options_.container);
    requests[server] = make_message(body);
  }
  return call(kDeleteVariables, std::move(requests), call_options(0, false)).status();
}

template <typename Request>
absl::Status PsClient::tell_all(const char* method, const Request& request,
                                const CallOptions& options) {
  Requests requests;
  for (int i = 0; i < servers(); ++i) requests[i] = make_message(request);
  return call(method, std::move(requests), options).status();
}

absl::Status PsClient::drop_container() {
  DropContainerRequest request;
  request.set_container(options_.container);
  return tell_all(kDropContainer, request, call_options(0, false));
}

absl::Status PsClient::begin_origin(uint64_t origin) {
  BeginOriginRequest request;
  request.set_origin(origin);
  return tell_all(kBeginOrigin, request, call_options(0, false));
}

absl::Status PsClient::end_origin(uint64_t origin, Duration timeout) {
  EndOriginRequest request;
  request.set_origin(origin);
  CallOptions options = call_options(0, false);
  options.deadline = after(timeout);
  options.retry.reset();  // a server that is gone must not keep the caller
  return tell_all(kEndOrigin, request, options);
}

namespace {

// A pull on its way: what was asked of each server, and where its answers go.
struct PullPlan {
  // One entry of a server's answer.
  struct Entry {
    size_t pull;
    size_t shard;
    std::vector<int64_t> positions;  // of rows, in the result; empty: all of it
  };
  struct OfServer {
    PullRequest body;
    std::vector<at::Tensor> ids;
    std::vector<TensorShape> shapes;
    std::vector<Entry> entries;
    bool by_rows = false;
  };

  std::vector<PsClient::Pull> pulls;
  std::vector<TensorShape> results;
  std::vector<at::Tensor> tensors;  // the results; undefined until they are known
  std::map<int, OfServer> servers;
  uint64_t bytes = 0;

  at::Tensor& result(size_t pull);
  // The part of a sharded result that an entry is, unless it is rows from here and there.
  at::Tensor part(const Entry& entry);
  // So that large parts of sharded variables arrive where they belong.
  std::map<int, Destination> destinations(const std::shared_ptr<PullPlan>& self);
  absl::StatusOr<std::vector<at::Tensor>> finish(const std::map<int, Message>& responses);
};

at::Tensor& PullPlan::result(size_t pull) {
  if (!tensors[pull].defined()) {
    tensors[pull] = BufferPool::shared().empty(results[pull].sizes, results[pull].dtype);
  }
  return tensors[pull];
}

at::Tensor PullPlan::part(const Entry& entry) {
  const RowRange& rows = pulls[entry.pull].variable.layout().shards[entry.shard].rows;
  return result(entry.pull).narrow(0, rows.first, rows.count);
}

std::map<int, Destination> PullPlan::destinations(const std::shared_ptr<PullPlan>& self) {
  std::map<int, Destination> into;
  for (const auto& [server, of] : servers) {
    const Packing packing(of.shapes);
    auto places = std::make_shared<std::map<size_t, at::Tensor>>();
    for (size_t i = 0; i < of.entries.size(); ++i) {
      const PsClient::Pull& pull = pulls[of.entries[i].pull];
      if (!packing.is_large(i) || pull.rows.defined()) continue;
      if (pull.variable.layout().shards.size() == 1) continue;
      (*places)[packing.place(i).tensor] = part(of.entries[i]);
    }
    if (places->empty()) continue;
    into[server] = [places, self](size_t index, c10::IntArrayRef, c10::ScalarType) {
      const auto found = places->find(index);
      return found == places->end() ? at::Tensor() : found->second;
    };
  }
  return into;
}

absl::StatusOr<std::vector<at::Tensor>> PullPlan::finish(const std::map<int, Message>& responses) {
  for (const auto& [server, of] : servers) {
    TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> parts,
                             Packing(of.shapes).unpack(responses.at(server).tensors));
    for (size_t k = 0; k < of.entries.size(); ++k) {
      const Entry& entry = of.entries[k];
      const PsClient::Pull& pull = pulls[entry.pull];
      if (pull.variable.layout().shards.size() == 1) {
        tensors[entry.pull] = parts[k];
        continue;
      }
      if (!pull.rows.defined()) {
        const at::Tensor place = part(entry);
        if (place.data_ptr() != parts[k].data_ptr()) internal::assign(place, parts[k]);
        continue;
      }
      const at::Tensor& whole = result(entry.pull);
      char* out = static_cast<char*>(whole.data_ptr());
      const char* in = static_cast<const char*>(parts[k].const_data_ptr());
      const size_t row = internal::row_bytes(whole);
      for (size_t i = 0; i < entry.positions.size(); ++i) {
        std::memcpy(out + entry.positions[i] * row, in + i * row, row);
      }
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) result(i);  // also no rows of a sharded one
  return std::move(tensors);
}

}  // namespace

void PsClient::pull(std::vector<Pull> pulls, Done<std::vector<at::Tensor>> done) {
  auto plan = std::make_shared<PullPlan>();
  plan->pulls = std::move(pulls);
  plan->tensors.resize(plan->pulls.size());
  const absl::Status status = [&]() -> absl::Status {
    for (size_t i = 0; i < plan->pulls.size(); ++i) {
      const Pull& pull = plan->pulls[i];
      const VariableLayout& layout = pull.variable.layout();
      TensorShape result{layout.dtype, layout.sizes};
      std::vector<RowsOfShard> rows;
      if (pull.rows.defined()) {
        TRIREME_ASSIGN_OR_RETURN(rows, split_ids(pull.rows, layout));
        result.sizes[0] = pull.rows.numel();
      }
      for (size_t s = 0; s < layout.shards.size(); ++s) {
        if (pull.rows.defined() && rows[s].ids.numel() == 0 && layout.shards.size() > 1) continue;
        PullPlan::OfServer& of = plan->servers[layout.shards[s].server];
        TensorShape shape = shape_of(layout, layout.shards[s]);
        of.body.add_handles(pull.variable.state_->handles[s]);
        if (pull.rows.defined()) {
          shape.sizes[0] = rows[s].ids.numel();
          of.ids.push_back(rows[s].ids);
          of.by_rows = true;
        }
        of.body.add_rows(pull.rows.defined() ? shape.sizes[0] + 1 : 0);
        plan->bytes += shape.bytes();
        of.shapes.push_back(std::move(shape));
        of.entries.push_back(
            {i, s, pull.rows.defined() ? std::move(rows[s].positions) : std::vector<int64_t>()});
      }
      plan->results.push_back(std::move(result));
    }
    return absl::OkStatus();
  }();
  if (!status.ok()) return done(status);
  Requests requests;
  bool large = false;
  for (auto& [server, of] : plan->servers) {
    if (!of.by_rows) of.body.clear_rows();
    std::vector<TensorShape> shapes;
    for (const at::Tensor& ids : of.ids) shapes.push_back(TensorShape::of(ids));
    requests[server] = make_message(of.body, Packing(std::move(shapes)).pack(of.ids));
    uint64_t answer = 0;
    for (const TensorShape& shape : of.shapes) answer += shape.bytes() + internal::kAlignment;
    large |= answer > kFrameBytes;
  }
  call(
      kPullVariables, std::move(requests), call_options(plan->bytes, large),
      [plan, done = std::move(done)](absl::StatusOr<Responses> responses) mutable {
        if (!responses.ok()) return done(responses.status());
        done(plan->finish(*responses));
      },
      // Injected faults let two answers of one call arrive at once, which have to lie apart.
      options_.faults ? std::map<int, Destination>() : plan->destinations(plan));
}

absl::StatusOr<std::vector<at::Tensor>> PsClient::pull(std::vector<Pull> pulls) {
  auto answer = std::make_shared<std::promise<absl::StatusOr<std::vector<at::Tensor>>>>();
  pull(std::move(pulls), [answer](absl::StatusOr<std::vector<at::Tensor>> tensors) {
    answer->set_value(std::move(tensors));
  });
  return answer->get_future().get();  // it comes by the calls' deadline
}

absl::StatusOr<PsClient::Requests> PsClient::push_requests(const std::vector<Push>& pushes,
                                                           const PushOptions& options,
                                                           uint64_t& bytes) const {
  struct OfServer {
    PushRequest body;
    std::vector<at::Tensor> tensors;
    bool by_rows = false;
  };
  std::map<int, OfServer> servers;
  for (const Push& push : pushes) {
    const VariableLayout& layout = push.variable.layout();
    at::Tensor rows = push.rows, values = push.values;
    if (values.defined() && values.is_sparse()) {
      if (rows.defined() || values.sparse_dim() != 1) {
        return make_status(ErrorCode::kInvalidArgument,
                           "a sparse update has one sparse dimension and brings its rows",
                           object(layout));
      }
      rows = values._indices().select(0, 0);
      values = values._values();
    }
    TRIREME_ASSIGN_OR_RETURN(values, prepare_to_send(values));
    TensorShape expected{layout.dtype, layout.sizes};
    std::vector<RowsOfShard> split;
    if (rows.defined()) {
      TRIREME_ASSIGN_OR_RETURN(split, split_ids(rows, layout));
      expected.sizes[0] = rows.numel();
    }
    if (TensorShape::of(values) != expected) {
      return make_status(ErrorCode::kInvalidArgument,
                         absl::StrCat("an update of ", internal::to_string(TensorShape::of(values)),
                                      " where ", internal::to_string(expected), " belongs"),
                         object(layout));
    }
    for (size_t s = 0; s < layout.shards.size(); ++s) {
      const Shard& shard = layout.shards[s];
      if (rows.defined() && split[s].ids.numel() == 0) continue;
      OfServer& of = servers[shard.server];
      of.body.add_handles(push.variable.state_->handles[s]);
      of.body.add_kinds(static_cast<UpdateKind>(push.kind));
      if (!rows.defined()) {
        of.body.add_rows(0);
        of.tensors.push_back(part_of(values, layout, shard));
      } else {
        const auto& positions = split[s].positions;
        at::Tensor part = values;
        if (layout.shards.size() > 1) {
          TensorShape shape = expected;
          shape.sizes[0] = positions.size();
          part = BufferPool::shared().empty(shape.sizes, shape.dtype);
          const size_t row = internal::row_bytes(values);
          for (size_t i = 0; i < positions.size(); ++i) {
            std::memcpy(static_cast<char*>(part.data_ptr()) + i * row,
                        static_cast<const char*>(values.const_data_ptr()) + positions[i] * row,
                        row);
          }
        }
        of.by_rows = true;
        of.body.add_rows(split[s].ids.numel() + 1);
        of.tensors.push_back(split[s].ids);
        of.tensors.push_back(std::move(part));
      }
      bytes += of.tensors.back().nbytes();
    }
  }
  Requests requests;
  for (auto& [server, of] : servers) {
    of.body.set_origin(options.id.origin);
    of.body.set_sequence(options.id.sequence);
    of.body.set_part(options.id.part);
    of.body.set_watermark(options.watermark);
    if (options.lr) of.body.set_lr(*options.lr);
    if (!of.by_rows) of.body.clear_rows();
    std::vector<TensorShape> shapes;
    for (const at::Tensor& tensor : of.tensors) shapes.push_back(TensorShape::of(tensor));
    requests[server] = make_message(of.body, Packing(std::move(shapes)).pack(of.tensors));
  }
  return requests;
}

void PsClient::push(const std::vector<Push>& pushes, const PushOptions& options,
                    absl::AnyInvocable<void(absl::Status)> done) {
  uint64_t bytes = 0;
  absl::StatusOr<Requests> requests = push_requests(pushes, options, bytes);
  if (!requests.ok()) return done(requests.status());
  call(kPushVariables, *std::move(requests), call_options(bytes, false),
       [done = std::move(done)](absl::StatusOr<Responses> responses) mutable {
         done(responses.status());
       });
}

absl::Status PsClient::push(const std::vector<Push>& pushes, const PushOptions& options) {
  auto answer = std::make_shared<std::promise<absl::Status>>();
  push(pushes, options, [answer](absl::Status status) { answer->set_value(std::move(status)); });
  return answer->get_future().get();  // it comes by the calls' deadline
}

absl::Status PsClient::write(const std::vector<Push>& writes) {
  uint64_t bytes = 0;
  TRIREME_ASSIGN_OR_RETURN(Requests requests, push_requests(writes, {}, bytes));
  return call(kWriteVariables, std::move(requests), call_options(bytes, false)).status();
}

}  // namespace trireme
