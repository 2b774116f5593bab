// Runs one task's part of a step. Before each node, advance() sends the values that are due, takes
// the values that the node waits for, locks the variables that it touches, and runs it. When a
// value has not arrived, advance() returns and keeps its position in three counters, so that a
// waiting part holds no thread.
//
// All parts follow the one captured order, so they cannot wait for each other in a circle: sends
// that are due go out before the part waits.
//
// Variables are locked for one operator at a time, not for the whole step. Operators of other steps
// may run in between, but no operator sees a half-written variable.
//
// Everything that arrives comes from another process and is checked against the type that the graph
// declares before an operator sees it.
#include "trireme/exec/part_run.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/graph/describe_node.h"
#include "trireme/graph/graph_header.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

// Holds the locks of the variables that an operator touches: exclusive for those that it writes,
// shared for the others. An exclusive lock also takes the variable's next version. Locks are taken
// in the order of their addresses, so that two operators over the same variables cannot deadlock.
class VariableLocks {
 public:
  VariableLocks(const std::vector<std::pair<uint32_t, bool>>& variables,
                const std::vector<SharedMutex*>& locks) {
    if (locks.empty()) return;
    for (const auto& [variable, writes] : variables) held_.emplace_back(locks[variable], writes);
    std::ranges::sort(held_);
    for (auto& [lock, writes] : held_) writes ? lock->lock() : lock->lock_shared();
  }
  ~VariableLocks() {
    for (auto& [lock, writes] : held_) writes ? lock->unlock() : lock->unlock_shared();
  }

  VariableLocks(const VariableLocks&) = delete;
  VariableLocks& operator=(const VariableLocks&) = delete;

 private:
  std::vector<std::pair<SharedMutex*, bool>> held_;
};

std::vector<int64_t> list(const google::protobuf::RepeatedField<int64_t>& items) {
  return {items.begin(), items.end()};
}

bool has_type(const at::Tensor& tensor, const proto::TensorType& type) {
  return static_cast<int>(tensor.scalar_type()) == type.dtype() &&
         std::ranges::equal(tensor.sizes(), type.sizes());
}

// Returns a value as pieces. With `copy`, they share no memory with the value. A dense value that
// has the strides the graph declares, and no gaps, is sent as its flat memory, and unpack()
// restores the strides; any other layout is made contiguous.
Pieces pack(const at::Tensor& value, const proto::TensorType& type, bool copy) {
  if (value.is_sparse()) {
    const auto piece = [copy](const at::Tensor& tensor) {
      return copy ? tensor.clone(at::MemoryFormat::Contiguous) : tensor.contiguous();
    };
    return {piece(value._indices()), piece(value._values()),
            at::full({}, value.is_coalesced(), at::kBool)};
  }
  at::Tensor flat = value;
  if (has_type(value, type) && std::ranges::equal(value.strides(), type.strides()) &&
      is_dense(type)) {
    flat = at::as_strided(value, {value.numel()}, {1});
  }
  return {copy ? flat.clone(at::MemoryFormat::Contiguous) : flat.contiguous()};
}

// Checks a generator's state that another process sent. LibTorch checks `next`, the position in its
// table of numbers, and `left`, the count of unused numbers, but not that the two are consistent:
// it would read past the table. The state begins with the seed (8 bytes), `left` (4 bytes), 4 other
// bytes, and `next` (8 bytes).
absl::Status check_generator_state(const at::Tensor& state) {
  constexpr int64_t kNumbers = 624;
  int32_t left = 0;
  int64_t next = 0;
  if (state.scalar_type() == at::kByte && state.is_contiguous() && state.numel() >= 24) {
    const auto* bytes = static_cast<const char*>(state.const_data_ptr());
    std::memcpy(&left, bytes + 8, sizeof left);
    std::memcpy(&next, bytes + 16, sizeof next);
    if (left >= 0 && next >= 0 && next <= kNumbers && left + next <= kNumbers + 1) {
      return absl::OkStatus();
    }
  }
  return make_status(ErrorCode::kInvalidArgument,
                     "the generator's state that another task sent is not valid");
}

// Restores a value from pieces that another process sent. Fails unless they make up a tensor of the
// declared type; sparse indices must be in range.
absl::StatusOr<at::Tensor> unpack(Pieces pieces, const proto::TensorType& type) {
  const std::vector<int64_t> sizes = list(type.sizes());
  if (type.sparse() && pieces.size() == 3) {
    const at::Tensor &indices = pieces[0], &values = pieces[1];
    const bool fits = indices.dim() == 2 && indices.scalar_type() == at::kLong &&
                      indices.size(0) <= static_cast<int64_t>(sizes.size()) && values.dim() >= 1 &&
                      values.size(0) == indices.size(1) &&
                      static_cast<int>(values.scalar_type()) == type.dtype() &&
                      pieces[2].scalar_type() == at::kBool && pieces[2].numel() == 1;
    if (fits) {
      return try_call([&] {
        at::_validate_sparse_coo_tensor_args(indices, values, sizes);
        return at::_sparse_coo_tensor_unsafe(indices, values, sizes)
            ._coalesced_(pieces[2].item<bool>());
      });
    }
  } else if (!type.sparse() && pieces.size() == 1 &&
             static_cast<int>(pieces[0].scalar_type()) == type.dtype()) {
    const std::vector<int64_t> strides = list(type.strides());
    int64_t elements = 1;
    for (int64_t size : sizes) elements *= size;
    if (pieces[0].sizes() == sizes) return pieces[0];
    if (pieces[0].dim() == 1 && pieces[0].numel() == elements && is_dense(type)) {
      return at::as_strided(pieces[0], sizes, strides);
    }
  }
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("a value that another task sent is not a tensor of the expected "
                                  "dtype and shape ",
                                  format_shape(sizes)));
}

}  // namespace

PartRun::PartRun(std::shared_ptr<const Plan> plan, std::vector<at::Tensor> variables,
                 at::Generator generator, PartRunOptions options)
    : plan_(std::move(plan)),
      variables_(std::move(variables)),
      options_(std::move(options)),
      runner_(*plan_, std::move(generator), options_.device_seed) {}

absl::Status PartRun::bind(const std::vector<at::Tensor>& inputs) {
  return runner_.bind(inputs, variables_);
}

absl::StatusOr<PartRun::State> PartRun::advance() {
  // Below autograd and with gradient mode on, as in replay().
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::AutoGradMode with_gradients(true);
  for (; next_ < plan_->nodes.size(); ++next_, next_receive_ = 0) {
    const NodePlan& node = plan_->nodes[next_];
    if (options_.stop.stop_requested()) {
      return make_status(ErrorCode::kCancelled,
                         absl::StrCat("cancelled before ", describe_node(*plan_, next_)),
                         runner_.origin());
    }
    try {
      TRIREME_RETURN_IF_ERROR(send_due());
      TRIREME_ASSIGN_OR_RETURN(const bool arrived, receive(node));
      if (!arrived) return State::kWaiting;
      TRIREME_RETURN_IF_ERROR(execute(node));
    } catch (...) {
      return runner_.current_exception_as_status(next_);
    }
  }
  TRIREME_RETURN_IF_ERROR(send_due());
  return State::kDone;
}

absl::Status PartRun::execute(const NodePlan& node) {
  const VariableLocks locks(node.variables, options_.locks);
  if (options_.check_write &&
      std::ranges::any_of(node.variables, [](const auto& variable) { return variable.second; })) {
    TRIREME_RETURN_IF_ERROR(options_.check_write());
  }
  if (options_.before_write) {
    for (const auto& [variable, writes] : node.variables) {
      if (writes) options_.before_write(variable);
    }
  }
  runner_.execute(node, stack_, /*in_order=*/true);
  return absl::OkStatus();
}

absl::StatusOr<bool> PartRun::receive(const NodePlan& node) {
  for (; next_receive_ < node.receives.size(); ++next_receive_) {
    const uint32_t number = node.receives[next_receive_];
    std::optional<Pieces> pieces = options_.transfers->take(number);
    if (!pieces) return false;
    const int64_t value = plan_->received_values[number];
    if (value < 0) {
      if (pieces->size() != 1) {
        return make_status(ErrorCode::kInvalidArgument,
                           "the generator's state that another task sent is not valid");
      }
      TRIREME_RETURN_IF_ERROR(check_generator_state(pieces->front()));
      runner_.generator().set_state(pieces->front());
      continue;
    }
    TRIREME_ASSIGN_OR_RETURN(
        runner_.value(value),
        unpack(*std::move(pieces), plan_->graph->def.values(static_cast<int>(value)).type()));
  }
  return true;
}

absl::Status PartRun::send_due() {
  const size_t first = next_send_;
  for (; next_send_ < plan_->sends.size() && plan_->sends[next_send_].after <= next_;
       ++next_send_) {
    const SendPlan& send = plan_->sends[next_send_];
    if (send.value < 0) {
      options_.transfers->send(send.index, {runner_.generator().get_state()});
      continue;
    }
    std::vector<std::pair<uint32_t, bool>> touched;
    if (send.variable >= 0) touched.emplace_back(static_cast<uint32_t>(send.variable), false);
    Pieces pieces;
    {
      const VariableLocks locks(touched, options_.locks);
      pieces = pack(runner_.value(send.value).toTensor(),
                    plan_->graph->def.values(static_cast<int>(send.value)).type(), send.copied);
    }
    if (send.last_use) runner_.value(send.value) = c10::IValue();
    options_.transfers->send(send.index, std::move(pieces));
  }
  if (next_send_ > first) options_.transfers->flush();
  return absl::OkStatus();
}

std::vector<at::Tensor> PartRun::outputs() {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < plan_->output_copied.size(); ++i) {
    std::vector<std::pair<uint32_t, bool>> touched;
    const int64_t variable = plan_->output_variables[i];
    if (variable >= 0) touched.emplace_back(static_cast<uint32_t>(variable), false);
    const VariableLocks locks(touched, options_.locks);
    outputs.push_back(runner_.output(i));
  }
  for (size_t i = 0; i < variables_.size(); ++i) {
    if (plan_->variable_written[i]) variables_[i].unsafeGetTensorImpl()->bump_version();
  }
  return outputs;
}

}  // namespace trireme::internal
