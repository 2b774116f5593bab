#include "trireme/ps/push_call.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/ps/call_slices.h"
#include "trireme/ps/kernels.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/parallel.h"
#include "trireme/ps/pull_call.h"
#include "trireme/ps/update.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/frame.h"

// A push is checked as a whole before any of it is applied: handles, shapes, row ids, kinds, and
// that the variables' optimizers accept the gradients. After that, the updates are applied by the
// threads of the pool, and the last of them sends the answer. An update can then fail only if its
// writer is fenced meanwhile, the records of pushes are full, or memory is short.
namespace trireme::internal {
namespace {

struct PushCall {
  explicit PushCall(ServerCall call) : call(std::move(call)) {}

  ServerCall call;
  std::vector<std::shared_ptr<StoredVariable>> variables;
  std::vector<Update> updates;
  std::vector<uint64_t> versions;  // version of each variable after its update
  std::vector<std::shared_ptr<StoredVariable>> then_pull;  // variables to be read after that
  StoredVariable::Push source;
  std::optional<double> lr;
  Mutex mutex;
  absl::Status status ABSL_GUARDED_BY(mutex);  // first error of an update
};

// Returns an error if a variable is named twice. A shard applies one update for each push, so it
// would take the second one for a repetition of the first and drop it. Clients mostly name
// variables in the order of their handles, so that one pass shows that all differ.
absl::Status check_handles_differ(const PushCall& push) {
  const auto by_handle = [](const auto& a, const auto& b) { return a->handle < b->handle; };
  const auto not_ascending = [&](const auto& a, const auto& b) { return !by_handle(a, b); };
  const auto& named = push.variables;
  if (std::adjacent_find(named.begin(), named.end(), not_ascending) == named.end()) {
    return absl::OkStatus();
  }
  auto sorted = named;
  std::sort(sorted.begin(), sorted.end(), by_handle);
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  return twice == sorted.end() ? absl::OkStatus() : named_twice((*twice)->object());
}

// Returns an error if the contents of variables are larger than a frame.
absl::Status check_fits_frame(const std::vector<std::shared_ptr<StoredVariable>>& variables) {
  uint64_t bytes = 0;
  for (const auto& variable : variables) {
    bytes += variable->tensor.nbytes() + kAlignment;
    if (bytes <= kFrameBytes) continue;
    return malformed_request(
        absl::StrCat("a push with a pull of more than ", kFrameBytes, " bytes"));
  }
  return absl::OkStatus();
}

// Checks the request and decodes its updates.
absl::Status prepare_push(const PushContext& context, PushCall& push) {
  Message& message = push.call.request();
  TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<PushRequest>(message));
  const PushId id{request.writer(), request.sequence(), request.round()};
  TRIREME_ASSIGN_OR_RETURN(auto writer, context.writers.admit(id, request.watermark()));
  push.source = {std::move(writer), id};
  if (request.has_lr()) push.lr = request.lr();
  TRIREME_ASSIGN_OR_RETURN(push.variables, context.store.lookup(request.handles()));
  TRIREME_RETURN_IF_ERROR(check_handles_differ(push));
  TRIREME_ASSIGN_OR_RETURN(push.then_pull, context.store.lookup(request.then_pull()));
  TRIREME_RETURN_IF_ERROR(check_fits_frame(push.then_pull));
  const size_t count = push.variables.size();
  if (static_cast<size_t>(request.kinds_size()) != count) {
    return malformed_request(
        absl::StrCat(request.kinds_size(), " kinds for ", count, " variables"));
  }
  TRIREME_ASSIGN_OR_RETURN(const RowCounts rows, row_counts(request.rows(), count, message));
  std::vector<TensorShape> sent;
  sent.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (rows[i]) sent.push_back(ids_shape(*rows[i]));
    TRIREME_ASSIGN_OR_RETURN(sent.emplace_back(), slice_shape(*push.variables[i], rows[i]));
  }
  std::vector<ScatteredTensor>& scattered = push.call.scattered();
  const Packing packing(std::move(sent));
  for (size_t i = 0; i < scattered.size(); ++i) {
    at::Tensor& tensor = message.tensors[i];
    const bool is_block = i == 0 && packing.has_block();
    if (!tensor.is_meta() || (!is_block && adds_pieces(tensor.scalar_type()))) continue;
    TRIREME_ASSIGN_OR_RETURN(tensor, try_call([&] {
                               return scattered[i].gather(tensor.sizes(), tensor.scalar_type());
                             }));
  }
  TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> tensors, packing.unpack(message.tensors));
  message.tensors.clear();
  push.updates.reserve(count);
  for (size_t i = 0, next = 0; i < count; ++i) {
    if (request.kinds(i) < UPDATE_ADD || request.kinds(i) > UPDATE_GRADIENT) {
      return malformed_request(absl::StrCat("an update of kind ", request.kinds(i)));
    }
    Update& update = push.updates.emplace_back();
    update.kind = static_cast<Update::Kind>(request.kinds(i));
    if (rows[i]) update.ids = tensors[next++];
    update.values = tensors[next];
    if (update.values.is_meta()) {
      update.scattered = std::move(scattered[packing.place(next).tensor]);
    }
    ++next;
    TRIREME_RETURN_IF_ERROR(push.variables[i]->check(update));
  }
  return absl::OkStatus();
}

// Rejects the push. Frees its tensors before the sender can send the next.
void reject_push(const PushContext& context, PushCall& push, const absl::Status& status) {
  if (absl::IsAborted(status)) context.already_decided.add();
  push.updates.clear();
  push.call.respond(status);
}

// Applies all updates and sends the answer.
void apply_updates(const PushContext& context, const std::shared_ptr<PushCall>& push) {
  std::vector<size_t> bytes;
  bytes.reserve(push->updates.size());
  for (const Update& update : push->updates) bytes.push_back(update.values.nbytes());
  push->versions.resize(push->updates.size());
  for_each_parallel(
      *context.pool, bytes,
      [push](size_t i) {
        const absl::StatusOr<uint64_t> version =
            push->variables[i]->apply(push->updates[i], push->source, push->lr);
        if (version.ok()) {
          push->versions[i] = *version;
          return;
        }
        MutexLock lock(push->mutex);
        push->status.Update(version.status());
      },
      [push, &context] {
        absl::Status status;
        {
          MutexLock lock(push->mutex);
          status = push->status;
        }
        if (!status.ok()) return reject_push(context, *push, status);
        push->updates.clear();
        auto contents = read_whole(push->then_pull, context.snapshots);
        if (!contents.ok()) return push->call.respond(contents.status());
        PushResponse response;
        response.mutable_versions()->Add(push->versions.begin(), push->versions.end());
        push->call.respond(make_message(response, *std::move(contents)));
      });
}

// Returns true if some variables are changed by rows.
bool has_rows(const PushRequest& request) {
  return std::any_of(request.rows().begin(), request.rows().end(),
                     [](uint64_t rows) { return rows != 0; });
}

}  // namespace

void serve_push(const PushContext& context, ServerCall call) {
  auto push = std::make_shared<PushCall>(std::move(call));
  const absl::Status status = prepare_push(context, *push);
  status.ok() ? apply_updates(context, push) : reject_push(context, *push, status);
}

bool can_apply_pieces(const std::string& body) {
  PushRequest request;
  if (!request.ParseFromString(body) || has_rows(request)) return false;
  const auto is_plain = [](int kind) { return kind == UPDATE_ADD || kind == UPDATE_ASSIGN; };
  return std::all_of(request.kinds().begin(), request.kinds().end(), is_plain);
}

bool changes_whole_variables(const std::string& body) {
  PushRequest request;
  return request.ParseFromString(body) && !has_rows(request);
}

}  // namespace trireme::internal
