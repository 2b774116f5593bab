#include "trireme/graph/call_rules.h"

#include <ATen/core/List.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>

#include <algorithm>
#include <string>
#include <unordered_map>

#include "trireme/graph/guard_checks.h"
#include "trireme/graph/guards.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

using Names = std::vector<std::string>;

// Returns the operators whose kernels treat some arguments as contiguous whatever their strides
// are, with the names of these arguments. The operator fuzzer (tests/fuzz/operators) looks for
// others.
const std::unordered_map<std::string, Names>& arguments_read_as_contiguous() {
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

// Returns true if two elements may share memory. Exact for every view that slicing, transposing and
// expanding can make; may return true for unusual strides that do not overlap.
bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return false;
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  // Without overlap, each stride steps over everything that the smaller strides can reach.
  std::ranges::sort(dimensions);
  int64_t reach = 0;  // largest offset that the dimensions with smaller strides reach
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

void check_write(const at::Tensor& tensor) {
  if (tensor.defined() && overlaps_itself(tensor)) {
    refuse(
        "it writes to a tensor in which several elements share the same memory, as in an expanded "
        "tensor; clone() it first");
  }
}

bool has_excess_memory(const at::Tensor& tensor) {
  return tensor.has_storage() &&
         tensor.storage().nbytes() > static_cast<size_t>(tensor.numel()) * tensor.itemsize();
}

bool is_sparse(const c10::IValue& argument) {
  return is_given(argument) && argument.toTensor().layout() == at::kSparse;
}

// Returns true if the indices and values of a sparse tensor are laid out as kernels assume. Kernels
// use the stride of the values as the length of one value.
bool has_contiguous_parts(const at::Tensor& sparse) {
  const at::Tensor values = sparse._values();
  int64_t length = 1;
  for (int64_t size : values.sizes().slice(1)) length = product(length, size);
  return values.numel() == 0 || (values.is_contiguous() && values.stride(0) == length &&
                                 sparse._indices().is_contiguous());
}

at::Tensor with_contiguous_parts(const at::Tensor& sparse) {
  constexpr auto kFormat = at::MemoryFormat::Contiguous;
  return at::_sparse_coo_tensor_unsafe(sparse._indices().clone(kFormat),
                                       sparse._values().clone(kFormat), sparse.sizes())
      ._coalesced_(sparse.is_coalesced());
}

at::Tensor trimmed(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.layout() == at::kStrided) return has_excess_memory(tensor) ? tensor.clone() : tensor;
  if (tensor.layout() != at::kSparse) return tensor;
  // Some kernels return a sparse tensor that shares the indices of their argument.
  return with_contiguous_parts(tensor);
}

// Makes the parts of sparse arguments contiguous, and rejects writes that LibTorch would perform
// incorrectly. Called if at least one argument is sparse.
void prepare_sparse_arguments(const CallRules& rules, std::span<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool written = std::ranges::count(rules.written, static_cast<int>(i)) > 0;
    if (is_sparse(arguments[i]) && !has_contiguous_parts(arguments[i].toTensor())) {
      require(!written,
              "it writes to a sparse tensor whose values are not contiguous; clone() it first");
      arguments[i] = with_contiguous_parts(arguments[i].toTensor());
    } else if (written && is_given(arguments[i]) && !is_sparse(arguments[i])) {
      // When LibTorch adds a sparse tensor to a dense one, it applies the dense one's storage
      // offset twice.
      require(
          arguments[i].toTensor().storage_offset() == 0,
          "it has a sparse argument and writes to a slice of another tensor, which LibTorch does "
          "at a wrong offset; clone() the slice first");
    }
  }
}

}  // namespace

CallRules call_rules(const c10::OperatorHandle& op) {
  const std::string& base = op.operator_name().name;
  CallRules rules{find_guard(base), writable_arguments(op), {}};
  if (const auto found = arguments_read_as_contiguous().find(base);
      found != arguments_read_as_contiguous().end()) {
    for (const std::string& name : found->second) {
      rules.contiguous.push_back(op.schema().argumentIndexWithName(name).value());
    }
  }
  for (size_t result = 0; result < op.schema().returns().size(); ++result) {
    bool shares = makes_uninitialized(op);  // no need to trim: NodeRunner zeroes the whole storage
    for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
      shares |= may_share_memory(op, i, result);
    }
    if (!shares) rules.fresh.push_back(static_cast<int>(result));
  }
  return rules;
}

void enforce(const CallRules& rules, std::span<c10::IValue> arguments) {
  for (int i : rules.contiguous) {
    if (!is_given(arguments[i])) continue;
    const at::Tensor& tensor = arguments[i].toTensor();
    if (tensor.layout() != at::kStrided) continue;
    // The guard checks the elements, not the gaps between them. A kernel that ignores strides reads
    // the gaps too, which is unsafe if it uses the numbers as indices.
    const bool has_gaps = (tensor.dim() == 1 || at::isIntegralType(tensor.scalar_type(), false)) &&
                          !tensor.is_non_overlapping_and_dense();
    if (has_gaps || overlaps_itself(tensor)) arguments[i] = tensor.contiguous();
  }
  if (rules.guard != nullptr) {
    rules.guard(c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()));
  }
  if (std::ranges::any_of(arguments, is_sparse)) prepare_sparse_arguments(rules, arguments);
  for (int i : rules.written) {
    if (arguments[i].isTensor()) {
      check_write(arguments[i].toTensor());
    } else if (arguments[i].isTensorList()) {
      for (const c10::IValue& item : arguments[i].toListRef()) check_write(item.toTensor());
    }
  }
}

void trim_results(const CallRules& rules, std::span<c10::IValue> results) {
  for (int i : rules.fresh) {
    if (results[i].isTensor()) {
      const at::Tensor& tensor = results[i].toTensor();
      if (tensor.defined() && (tensor.layout() != at::kStrided || has_excess_memory(tensor))) {
        results[i] = trimmed(tensor);
      }
    } else if (results[i].isTensorList()) {
      c10::List<at::Tensor> list = results[i].toTensorList();
      for (size_t k = 0; k < list.size(); ++k) list.set(k, trimmed(list.get(k)));
    }
  }
}

}  // namespace trireme::internal
