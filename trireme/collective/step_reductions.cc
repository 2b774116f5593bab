#include "trireme/collective/step_reductions.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/base/machine.h"
#include "trireme/base/mutex.h"

namespace trireme::internal {
namespace {

using at::Tensor;

// Sums below this size are copied out of their bucket. A program may keep the loss of each step,
// which must not keep a whole bucket in memory.
constexpr size_t kSmallSumBytes = 256 << 10;

// The communicators of the process, and their sums that were started but not finished.
struct StepCommunicators {
  Mutex mutex;
  int64_t last ABSL_GUARDED_BY(mutex) = 0;
  std::map<int64_t, std::shared_ptr<Communicator>> by_number ABSL_GUARDED_BY(mutex);
  std::map<std::pair<int64_t, const void*>, CollectiveWork> started
      ABSL_GUARDED_BY(mutex);  // by start_key()
};

// Returns the key of a bucket that was started: its communicator, and its storage. The data of
// buckets cannot tell them apart, since all that are empty have the same.
std::pair<int64_t, const void*> start_key(int64_t communicator, const Tensor& bucket) {
  return {communicator, bucket.storage().unsafeGetStorageImpl()};
}

StepCommunicators& step_communicators() {
  static auto* const communicators = new StepCommunicators;
  return *communicators;
}

int64_t add_communicator(std::shared_ptr<Communicator> communicator) {
  StepCommunicators& all = step_communicators();
  MutexLock lock(all.mutex);
  all.by_number[++all.last] = std::move(communicator);
  return all.last;
}

std::shared_ptr<Communicator> communicator_numbered(int64_t number) {
  StepCommunicators& all = step_communicators();
  MutexLock lock(all.mutex);
  const auto found = all.by_number.find(number);
  if (found != all.by_number.end()) return found->second;
  throw Error(ErrorCode::kFailedPrecondition,
              "a step uses a communicator that has ended; its strategy must live longer than the "
              "functions that use it");
}

Tensor start_sum(at::TensorList values, const std::optional<Tensor>&, int64_t number,
                 int64_t wire_dtype, std::string tag) {
  const std::shared_ptr<Communicator> communicator = communicator_numbered(number);
  int64_t elements = 0;
  for (const Tensor& value : values) elements += value.numel();
  const auto dtype =
      wire_dtype < 0 ? values[0].scalar_type() : static_cast<at::ScalarType>(wire_dtype);
  const Tensor bucket = communicator->allocate({elements}, dtype);
  int64_t offset = 0;
  for (const Tensor& value : values) {
    bucket.narrow(0, offset, value.numel()).view(value.sizes()).copy_(value);
    offset += value.numel();
  }
  CollectiveWork work = communicator->all_reduce(bucket, Reduction::kSum, {.tag = std::move(tag)});
  StepCommunicators& all = step_communicators();
  MutexLock lock(all.mutex);
  all.started.insert_or_assign(start_key(number, bucket), std::move(work));
  return bucket;
}

std::vector<Tensor> finish_sum(const Tensor& bucket, at::IntArrayRef sizes, int64_t dtype,
                               int64_t number) {
  StepCommunicators& all = step_communicators();
  std::optional<CollectiveWork> work;
  {
    MutexLock lock(all.mutex);
    const auto found = all.started.find(start_key(number, bucket));
    TORCH_CHECK(found != all.started.end(), "finish_sum got a bucket that was not started");
    work = std::move(found->second);
    all.started.erase(found);
  }
  work->wait();
  const Tensor sum = bucket.to(static_cast<at::ScalarType>(dtype));
  std::vector<Tensor> values;
  int64_t offset = 0;
  for (size_t i = 0; i < sizes.size(); i += 1 + sizes[i]) {
    const at::IntArrayRef shape = sizes.slice(i + 1, sizes[i]);
    const int64_t elements = c10::multiply_integers(shape);
    const Tensor part = sum.narrow(0, offset, elements).view(shape);
    values.push_back(part.nbytes() < kSmallSumBytes ? part.clone() : part);
    offset += elements;
  }
  return values;
}

Tensor sum_sparse(const Tensor& value, const std::optional<Tensor>&, int64_t number,
                  std::string tag) {
  return sum_sparse_over_ranks(*communicator_numbered(number), value, tag);
}

Tensor first_of_ranks(const Tensor& value, const std::optional<Tensor>&, int64_t number,
                      std::string tag) {
  const Tensor copy = value.contiguous().clone();
  communicator_numbered(number)->broadcast(copy, 0, {.tag = std::move(tag)}).wait();
  return copy;
}

// Checks the numbers of rows of all ranks, whose rows are as large as those of `value`. A rank with
// a wrong number must not make this process allocate more memory than there is. Ends the group with
// the error, since the other ranks may not see it.
void check_rows(Communicator& communicator, const Tensor& all_rows, const Tensor& value,
                const std::string& tag) {
  const int64_t row_bytes =
      c10::multiply_integers(value.sizes().slice(1)) * static_cast<int64_t>(value.element_size());
  const int64_t most =
      static_cast<int64_t>(physical_memory()) / all_rows.numel() / std::max<int64_t>(row_bytes, 1);
  for (int64_t rank = 0; rank < all_rows.numel(); ++rank) {
    const int64_t rows = all_rows[rank].item<int64_t>();
    if (rows >= 0 && rows <= most) continue;
    const std::string error =
        absl::StrCat("rank ", rank, " says that it has ", rows, " rows of ", row_bytes,
                     " bytes for '", tag, "', but rank ", communicator.rank(),
                     " has memory for 0 to ", most, " rows of each rank; make the tensor smaller");
    communicator.fail(error);
    throw Error(ErrorCode::kResourceExhausted, error);
  }
}

// Returns a tensor with `rows` rows that begins with those of `value`.
Tensor with_rows(const Tensor& value, int64_t rows) {
  std::vector<int64_t> sizes = value.sizes().vec();
  sizes[0] = rows;
  Tensor padded = at::zeros(sizes, value.options());
  padded.narrow(0, 0, value.size(0)).copy_(value);
  return padded;
}

}  // namespace

StepCommunicator::StepCommunicator(std::shared_ptr<Communicator> communicator)
    : number_(add_communicator(std::move(communicator))) {
  register_step_reductions();
}

StepCommunicator::~StepCommunicator() {
  std::shared_ptr<Communicator> ended;  // destroyed without the lock
  StepCommunicators& all = step_communicators();
  MutexLock lock(all.mutex);
  std::erase_if(all.started, [&](const auto& entry) { return entry.first.first == number_; });
  ended = std::move(all.by_number[number_]);
  all.by_number.erase(number_);
}

void register_step_reductions() {
  // Never destroyed, like the operators themselves.
  [[gnu::used]] static const auto* library = [] {
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, "trireme", std::nullopt, __FILE__, __LINE__);
    const auto define = [&](const char* schema, auto kernel) {
      made->def(schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                        torch::CppFunction(kernel)));
    };
    define(
        "start_sum(Tensor[] values, Tensor? after, int communicator, int wire_dtype, str tag) -> "
        "Tensor",
        TORCH_FN(start_sum));
    // Large sums are parts of the bucket. Without the annotation, a replay would copy each of them.
    define(
        "finish_sum(Tensor(a -> *) bucket, int[] sizes, int dtype, int communicator) -> "
        "Tensor(a)[]",
        TORCH_FN(finish_sum));
    define("sum_sparse(Tensor value, Tensor? after, int communicator, str tag) -> Tensor",
           TORCH_FN(sum_sparse));
    define("first_of_ranks(Tensor value, Tensor? after, int communicator, str tag) -> Tensor",
           TORCH_FN(first_of_ranks));
    return made;
  }();
}

Tensor concatenate_over_ranks(Communicator& communicator, const Tensor& value,
                              const std::string& tag) {
  const int ranks = communicator.size();
  const Tensor rows = at::full({1}, value.size(0), at::kLong);
  const Tensor all_rows = at::empty({ranks}, at::kLong);
  communicator.all_gather(rows, all_rows, {.tag = absl::StrCat(tag, ", rows")}).wait();
  check_rows(communicator, all_rows, value, tag);
  const int64_t most = all_rows.max().item<int64_t>();
  const Tensor mine = with_rows(value.detach(), most);
  std::vector<int64_t> sizes = mine.sizes().vec();
  sizes[0] *= ranks;
  const Tensor gathered = at::empty(sizes, mine.options());
  communicator.all_gather(mine, gathered, {.tag = tag}).wait();
  std::vector<Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(gathered.narrow(0, rank * most, all_rows[rank].item<int64_t>()));
  }
  return at::cat(parts);
}

Tensor sum_sparse_over_ranks(Communicator& communicator, const Tensor& value,
                             const std::string& tag) {
  // The entries of all ranks together: coalescing adds up those of the same row.
  const Tensor own = value.coalesce();
  const Tensor indices = concatenate_over_ranks(communicator, own._indices().t().contiguous(),
                                                absl::StrCat(tag, ", indices"));
  const Tensor values =
      concatenate_over_ranks(communicator, own._values(), absl::StrCat(tag, ", values"));
  return at::sparse_coo_tensor(indices.t().contiguous(), values, value.sizes(), value.options())
      .coalesce();
}

}  // namespace trireme::internal
