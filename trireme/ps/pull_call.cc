#include "trireme/ps/pull_call.h"

#include <ATen/ops/from_blob.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/ps/call_slices.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/parallel.h"
#include "trireme/ps/variables.pb.h"
#include "trireme/rpc/frame.h"
#include "trireme/tensor/buffer_pool.h"

// A pull is checked as a whole. A large one then waits for the budget for pulls. After that, the
// variables are read by the threads of the pool, and the last of them sends the answer. Variables
// for which the caller offers a place in shared memory are copied there and nowhere else.
namespace trireme::internal {
namespace {

// Variables that are read into the tensors of a message.
struct Reads {
  std::vector<std::shared_ptr<StoredVariable>> variables;
  std::vector<at::Tensor> ids;  // row ids of each variable; undefined for the whole variable
  std::optional<Packing> packing;
  std::vector<at::Tensor> answer;
  std::vector<uint64_t> versions;  // version of each variable in the answer
};

struct PullCall : Reads {
  explicit PullCall(ServerCall call) : call(std::move(call)) {}

  ServerCall call;
  uint64_t copied_bytes = 0;    // size of the variables that are sent
  std::shared_ptr<void> lease;  // returns the pull's share of the budget when it is destroyed
};

// Returns a tensor with the same memory that keeps `held` alive as long as it is in use.
at::Tensor tie_lifetime(const at::Tensor& tensor, std::shared_ptr<void> held) {
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), [tensor, held = std::move(held)](void*) {},
      tensor.options());
}

// Checks the request and allocates the block of the answer.
absl::Status prepare_pull(VariableStore& store, PullCall& pull) {
  const Message& message = pull.call.request();
  TRIREME_ASSIGN_OR_RETURN(const auto request, parse_body<PullRequest>(message));
  TRIREME_ASSIGN_OR_RETURN(pull.variables, store.lookup(request.handles()));
  const size_t count = pull.variables.size();
  TRIREME_ASSIGN_OR_RETURN(const RowCounts rows, row_counts(request.rows(), count, message));
  std::vector<TensorShape> shapes, sent;
  shapes.reserve(count);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    TRIREME_ASSIGN_OR_RETURN(shapes.emplace_back(), slice_shape(*pull.variables[i], rows[i]));
    if (rows[i]) sent.push_back(ids_shape(*rows[i]));
    bytes += shapes.back().bytes();
    if (bytes > kMostCallBytes) {
      return make_status(ErrorCode::kResourceExhausted,
                         absl::StrCat("rejected: the pull exceeds the limit of ", kMostCallBytes,
                                      " bytes; pull the variables in several calls"));
    }
  }
  TRIREME_ASSIGN_OR_RETURN(const std::vector<at::Tensor> ids,
                           Packing(std::move(sent)).unpack(message.tensors));
  pull.ids.resize(count);
  for (size_t i = 0, next = 0; i < count; ++i) {
    if (!rows[i]) continue;
    pull.ids[i] = ids[next++];
    TRIREME_RETURN_IF_ERROR(pull.variables[i]->check_ids(pull.ids[i]));
  }
  pull.packing.emplace(std::move(shapes));
  TRIREME_ASSIGN_OR_RETURN(pull.answer, try_call([&] { return pull.packing->allocate_block(); }));
  pull.copied_bytes = bytes;
  for (size_t i = 0; i < count; ++i) {
    if (!pull.packing->is_large(i) || rows[i]) continue;
    const TensorShape& shape = pull.packing->shapes()[i];
    at::Tensor& place = pull.answer[pull.packing->place(i).tensor];
    place = pull.call.place_for(pull.packing->place(i).tensor, shape.sizes, shape.dtype);
    if (place.defined()) pull.copied_bytes -= shape.bytes();
  }
  return absl::OkStatus();
}

// Reads variable `i` into the answer.
void read_variable(Reads& reads, size_t i, const std::shared_ptr<SnapshotBudget>& snapshots) {
  const auto [place, offset] = reads.packing->place(i);
  StoredVariable& variable = *reads.variables[i];
  if (reads.packing->is_large(i) && !reads.ids[i].defined() && !reads.answer[place].defined()) {
    StoredVariable::Snapshot snapshot = variable.snapshot(snapshots);
    reads.answer[place] = std::move(snapshot.contents);
    reads.versions[i] = snapshot.version;
    return;
  }
  char* out = nullptr;
  if (reads.packing->is_large(i) && !reads.answer[place].defined()) {
    const TensorShape& shape = reads.packing->shapes()[i];
    reads.answer[place] = BufferPool::shared().empty(shape.sizes, shape.dtype);
  }
  // There may be no block for a variable without elements.
  if (reads.packing->shapes()[i].bytes() > 0) {
    out = static_cast<char*>(reads.answer[place].data_ptr()) + offset;
  }
  reads.versions[i] = variable.read(reads.ids[i], out);
}

// Reads all variables and sends the answer.
void read_variables(const PullContext& context, const std::shared_ptr<PullCall>& pull) {
  std::vector<size_t> bytes;
  bytes.reserve(pull->variables.size());
  for (const TensorShape& shape : pull->packing->shapes()) bytes.push_back(shape.bytes());
  pull->versions.resize(bytes.size());
  for_each_parallel(
      *context.pool, bytes,
      [pull, &context](size_t i) { read_variable(*pull, i, context.snapshots); },
      [pull] {
        if (pull->lease) {  // held until the last byte was sent
          for (at::Tensor& tensor : pull->answer) tensor = tie_lifetime(tensor, pull->lease);
          pull->lease.reset();
        }
        PullResponse response;
        response.mutable_versions()->Add(pull->versions.begin(), pull->versions.end());
        pull->call.respond(make_message(response, std::move(pull->answer)));
      });
}

}  // namespace

void serve_pull(const PullContext& context, ServerCall call) {
  auto pull = std::make_shared<PullCall>(std::move(call));
  const absl::Status status = prepare_pull(context.store, *pull);
  if (!status.ok()) return pull->call.respond(status);
  const uint64_t bytes = pull->copied_bytes;
  if (bytes <= kFrameBytes) return read_variables(context, pull);
  context.budget->ask(bytes, [pull, bytes, &context] {
    pull->lease = std::shared_ptr<void>(
        nullptr, [budget = context.budget, bytes](void*) { budget->leave(bytes); });
    context.pool->submit([pull, &context] { read_variables(context, pull); });
  });
}

absl::StatusOr<std::vector<at::Tensor>> read_whole(
    const std::vector<std::shared_ptr<StoredVariable>>& variables,
    const std::shared_ptr<SnapshotBudget>& snapshots) {
  Reads reads{.variables = variables, .ids = std::vector<at::Tensor>(variables.size())};
  std::vector<TensorShape> shapes;
  for (const auto& variable : variables) {
    TRIREME_ASSIGN_OR_RETURN(shapes.emplace_back(), slice_shape(*variable, std::nullopt));
  }
  reads.packing.emplace(std::move(shapes));
  return try_call([&] {
    reads.answer = reads.packing->allocate_block();
    reads.versions.resize(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) read_variable(reads, i, snapshots);
    return std::move(reads.answer);
  });
}

}  // namespace trireme::internal
