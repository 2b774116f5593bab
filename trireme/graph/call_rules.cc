#include "trireme/graph/call_rules.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "trireme/graph/guard_checks.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

using Names = std::vector<std::string>;

// Kernels that walk over an argument's elements as if they were contiguous, with these arguments.
// The operator fuzzer (tests/fuzz/operators) looks for others.
const std::unordered_map<std::string, Names>& stride_blind() {
  static const auto* all = new std::unordered_map<std::string, Names>{
      {"aten::native_group_norm", {"weight", "bias"}},
      {"aten::native_group_norm_backward", {"grad_out", "input", "mean", "rstd", "weight"}},
      {"aten::native_layer_norm_backward", {"mean", "rstd"}},
      {"aten::native_batch_norm_backward",
       {"weight", "running_mean", "running_var", "save_mean", "save_invstd"}},
      {"aten::_embedding_bag", {"weight", "indices", "offsets", "per_sample_weights"}},
      {"aten::_embedding_bag_forward_only", {"weight", "indices", "offsets", "per_sample_weights"}},
      {"aten::_embedding_bag_backward",
       {"grad", "indices", "offsets", "offset2bag", "bag_size", "maximum_indices",
        "per_sample_weights"}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {"query", "key", "value", "attn_mask"}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       {"grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask"}},
      {"aten::mkldnn_rnn_layer", {"input", "hx_", "cx_"}},
      {"aten::mkldnn_rnn_layer_backward",
       {"input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp", "output", "hy_",
        "cy_", "grad_output", "grad_hy", "grad_cy"}},
      {"aten::median", {"self"}},
      {"aten::nanmedian", {"self"}},
      {"aten::adaptive_max_pool3d_backward", {"indices"}},
  };
  return *all;
}

// Returns true if two elements may lie on the same memory. Exact for every view that slicing,
// transposing and expanding give; exotic strides without an overlap may count as one.
bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return false;
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::ranges::sort(dimensions);
  int64_t reach = 0;  // of the dimensions with smaller strides
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

void check_write(const at::Tensor& tensor) {
  if (tensor.defined() && overlaps_itself(tensor)) {
    refuse(
        "it writes to a tensor of which several elements lie on the same memory (an expanded "
        "one?); "
        "clone() it first");
  }
}

}  // namespace

CallRules call_rules(const c10::OperatorHandle& op) {
  const std::string& base = op.operator_name().name;
  CallRules rules{find_guard(base), writable_arguments(op), {}};
  if (const auto found = stride_blind().find(base); found != stride_blind().end()) {
    for (const std::string& name : found->second) {
      if (const auto index = op.schema().argumentIndexWithName(name)) {
        rules.contiguous.push_back(*index);
      }
    }
  }
  return rules;
}

void enforce(const CallRules& rules, std::span<c10::IValue> arguments) {
  for (int i : rules.contiguous) {
    if (!is_given(arguments[i])) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    const bool is_row = tensor.dim() == 1 && tensor.layout() == at::kStrided;
    if (overlaps_itself(tensor) || (is_row && !tensor.is_contiguous())) {
      arguments[i] = tensor.contiguous();
    }
  }
  if (rules.guard != nullptr) {
    rules.guard(c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()));
  }
  for (int i : rules.written) {
    if (arguments[i].isTensor()) {
      check_write(arguments[i].toTensor());
    } else if (arguments[i].isTensorList()) {
      for (const c10::IValue& item : arguments[i].toListRef()) check_write(item.toTensor());
    }
  }
}

}  // namespace trireme::internal
