#include "trireme/collective/communicator.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/collective/call.h"
#include "trireme/collective/call_order.h"
#include "trireme/collective/choose_engine.h"
#include "trireme/collective/group.h"
#include "trireme/exec/operator_trace.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {

using internal::CollectiveCall;
using internal::CollectiveKind;

namespace {

void check_tensor(const CollectiveCall& call, const at::Tensor& tensor) {
  const auto reject = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat(internal::describe_call(call), ": the tensor ", why));
  };
  if (!tensor.defined()) reject("is undefined");
  if (tensor.layout() != at::kStrided) reject("is sparse; pass its indices and values");
  if (!tensor.device().is_cpu()) reject(absl::StrCat("is on ", tensor.device().str()));
  if (!tensor.is_contiguous()) reject("is not contiguous; call contiguous() first");
}

// Checks that `whole` consists of as many tensors like `part` as there are ranks.
void check_parts(const CollectiveCall& call, const at::Tensor& whole, const at::Tensor& part,
                 int ranks) {
  if (whole.scalar_type() == part.scalar_type() && whole.numel() == part.numel() * ranks) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat(internal::describe_call(call), ": ", format_shape(whole.sizes()),
                           " is not ", ranks, " times ", format_shape(part.sizes()),
                           " of the same dtype, one for each rank"));
}

// Rejects means of dtypes that cannot hold one. The engines would find out only when the sum is
// there, and would end the group.
void check_reduction(const CollectiveCall& call) {
  const at::ScalarType dtype = call.input.scalar_type();
  if (call.reduction != Reduction::kMean || c10::isFloatingType(dtype) ||
      c10::isComplexType(dtype)) {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat(internal::describe_call(call), ": values of the dtype ",
                           dtype_name(dtype), " have no mean of that dtype; convert the tensor to ",
                           "a floating-point dtype, or use kSum and divide the sum"));
}

}  // namespace

class Communicator::Impl {
 public:
  Impl(std::shared_ptr<internal::Group> members, CommunicationImplementation implementation,
       Time deadline, Duration limit)
      : group(std::move(members)),
        call_timeout(limit),
        chosen(value_or_throw(internal::choose_engine(*group, implementation, deadline))),
        order(std::make_shared<internal::CallOrder>(
            [this](const CollectiveCall& call) { return run(call); })) {}

  ~Impl() {
    const absl::Status cause =
        make_status(ErrorCode::kCancelled,
                    absl::StrCat(group->name_of(group->rank()), " of group '", group->name(),
                                 "' ended its communicator while a collective call was under way"));
    if (order->busy()) group->fail(cause);
    order->stop(cause);
  }

  CollectiveWork add(CollectiveCall call, const CollectiveOptions& options) {
    call.deadline = after(options.timeout.value_or(call_timeout));
    return CollectiveWork(order->add(std::move(call), chosen.engine->name()));
  }

  const std::shared_ptr<internal::Group> group;
  const Duration call_timeout;
  const internal::ChosenEngine chosen;

 private:
  absl::Status run(const CollectiveCall& call) {
    TRIREME_RETURN_IF_ERROR(group->failure());
    group->begin_call(call);
    // The group refers to the call until end_call(), also if the engine throws.
    absl::Status result;
    const absl::Status thrown = try_call([&] { result = chosen.engine->run(call); });
    group->end_call();
    if (!thrown.ok()) result = thrown;
    if (result.ok()) return result;
    group->fail(result);
    return group->failure();  // Another rank's failure may have come first.
  }

  const std::shared_ptr<internal::CallOrder> order;
};

CollectiveWork::CollectiveWork(std::shared_ptr<internal::QueuedCall> call)
    : call_(std::move(call)) {}

bool CollectiveWork::done() const {
  return call_->order->is_done(*call_);
}

void CollectiveWork::wait() const {
  internal::OperatorTrace* const trace = internal::OperatorTrace::current();
  if (trace == nullptr) return throw_if_error(call_->order->wait(*call_));
  const Time begin = std::chrono::steady_clock::now();
  throw_if_error(call_->order->wait(*call_));
  trace->add({.name = call_->call.tag,
              .engine = call_->engine,
              .bytes = call_->bytes,
              .call = call_->ran,
              .wait = {begin, std::chrono::steady_clock::now()}});
}

Communicator::Communicator(std::shared_ptr<internal::Group> group,
                           CommunicationImplementation implementation, Duration timeout,
                           Duration call_timeout)
    : impl_(
          std::make_shared<Impl>(std::move(group), implementation, after(timeout), call_timeout)) {}

Communicator::~Communicator() = default;

int Communicator::rank() const {
  return impl_->group->rank();
}

int Communicator::size() const {
  return impl_->group->size();
}

CommunicationImplementation Communicator::implementation() const {
  return impl_->chosen.implementation;
}

CollectiveWork Communicator::all_reduce(const at::Tensor& tensor, Reduction reduction,
                                        const CollectiveOptions& options) {
  CollectiveCall call{.kind = CollectiveKind::kAllReduce,
                      .reduction = reduction,
                      .tag = options.tag,
                      .input = tensor,
                      .output = tensor};
  check_tensor(call, tensor);
  check_reduction(call);
  return impl_->add(std::move(call), options);
}

CollectiveWork Communicator::reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                            Reduction reduction, const CollectiveOptions& options) {
  CollectiveCall call{.kind = CollectiveKind::kReduceScatter,
                      .reduction = reduction,
                      .tag = options.tag,
                      .input = input,
                      .output = output};
  check_tensor(call, input);
  check_tensor(call, output);
  check_parts(call, input, output, size());
  check_reduction(call);
  return impl_->add(std::move(call), options);
}

CollectiveWork Communicator::all_gather(const at::Tensor& input, const at::Tensor& output,
                                        const CollectiveOptions& options) {
  CollectiveCall call{
      .kind = CollectiveKind::kAllGather, .tag = options.tag, .input = input, .output = output};
  check_tensor(call, input);
  check_tensor(call, output);
  check_parts(call, output, input, size());
  return impl_->add(std::move(call), options);
}

CollectiveWork Communicator::broadcast(const at::Tensor& tensor, int root,
                                       const CollectiveOptions& options) {
  CollectiveCall call{.kind = CollectiveKind::kBroadcast,
                      .root = root,
                      .tag = options.tag,
                      .input = tensor,
                      .output = tensor};
  check_tensor(call, tensor);
  if (root < 0 || root >= size()) {
    throw Error(
        ErrorCode::kOutOfRange,
        absl::StrCat(internal::describe_call(call), ": the group has the ranks 0 to ", size() - 1));
  }
  return impl_->add(std::move(call), options);
}

CollectiveWork Communicator::all_to_all(const at::Tensor& input, const at::Tensor& output,
                                        const CollectiveOptions& options) {
  CollectiveCall call{
      .kind = CollectiveKind::kAllToAll, .tag = options.tag, .input = input, .output = output};
  check_tensor(call, input);
  check_tensor(call, output);
  check_parts(call, input, output, 1);
  if (input.numel() % size() != 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat(internal::describe_call(call), ": ", format_shape(input.sizes()),
                     " cannot be divided into ", size(), " equal parts, one for each rank"));
  }
  return impl_->add(std::move(call), options);
}

CollectiveWork Communicator::barrier(const CollectiveOptions& options) {
  return impl_->add({.kind = CollectiveKind::kBarrier, .tag = options.tag}, options);
}

at::Tensor Communicator::allocate(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto plain = [&] { return at::empty(sizes, at::TensorOptions(dtype)); };
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t size : sizes) bytes *= size;
  if (bytes == 0) return plain();
  const at::Tensor memory = impl_->chosen.engine->allocate(bytes);
  return memory.defined() ? memory.view(dtype).view(sizes) : plain();
}

void Communicator::fail(const std::string& message) {
  impl_->group->fail(make_status(ErrorCode::kAborted, message));
}

}  // namespace trireme
