// Answers questions about operators from three sources: the operator's schema, its tags, and lists
// kept here by hand. The lists exist because some schemas of LibTorch are incomplete: they do not
// declare every write and every alias. They were checked against LibTorch 2.13; a capture compares
// what each operator did with what is known here, and the operator fuzzer (tests/fuzz/operators)
// looks for gaps, so a new LibTorch shows what has changed.
#include "trireme/graph/operators.h"

#include <ATen/ops/as_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/status.h"
#include "trireme/graph/row_operators.h"

namespace trireme::internal {
namespace {

constexpr char kAllowed[] =
#include "trireme/graph/allowlist.inc"
    ;

const std::unordered_set<std::string>& allowed_names() {
  static const auto* names = new std::unordered_set<std::string>([] {
    std::unordered_set<std::string> set;
    for (absl::string_view name : absl::StrSplit(kAllowed, ' ', absl::SkipEmpty())) {
      set.insert(std::string(name));
    }
    return set;
  }());
  return *names;
}

bool is_own_operator(const std::string& name) {
  return name.starts_with("trireme::");
}

struct SplitName {
  std::string space, base, overload;
};

SplitName split_name(const std::string& name) {
  SplitName split;
  const size_t colons = name.find("::");
  if (colons == std::string::npos) return split;
  split.space = name.substr(0, colons);
  const size_t dot = name.find('.', colons);
  split.base = name.substr(colons + 2, dot == std::string::npos ? dot : dot - colons - 2);
  if (dot != std::string::npos) split.overload = name.substr(dot + 1);
  return split;
}

// Writes of an operator to arguments that its schema does not mark as written.
struct UndeclaredWrite {
  std::vector<int> arguments;  // positions
  int only_if;  // position of the flag that must be true for the write; -1 if it always writes
};

const UndeclaredWrite* undeclared_write(const std::string& base) {
  static const auto* writes = new std::unordered_map<std::string, UndeclaredWrite>{
      {"aten::native_batch_norm", {{3, 4}, 5}},         // the running statistics, in training
      {"aten::mkldnn_rnn_layer_backward", {{22}, -1}},  // overwrites its workspace
  };
  const auto found = writes->find(base);
  return found == writes->end() ? nullptr : &found->second;
}

// Returns the positions of arguments whose memory a result may share although the schema does not
// say so; null if there are none. The operator fuzzer looks for others.
const std::vector<int>* undeclared_alias(const std::string& base) {
  static const auto* aliases = new std::unordered_map<std::string, std::vector<int>>{
      {"aten::_unsafe_view", {0}},
      {"aten::unsafe_split", {0}},
      {"aten::unsafe_split_with_sizes", {0}},
      {"aten::lift", {0}},
      {"aten::native_dropout", {0}},  // if the tensor is empty
      {"aten::channel_shuffle", {0}},
      {"aten::_sparse_coo_tensor_with_dims_and_tensors", {3, 4}},
      {"aten::_embedding_bag_backward", {1}},  // the indices of a sparse gradient
  };
  const auto found = aliases->find(base);
  return found == aliases->end() ? nullptr : &found->second;
}

// The schemas of fused optimizers mark the gradients as written. They are written only if there is
// a scale to divide them by.
std::vector<int> written_by_fused(const c10::OperatorHandle& op,
                                  c10::ArrayRef<c10::IValue> arguments) {
  std::vector<int> written = writable_arguments(op);
  const auto scale = op.schema().argumentIndexWithName("grad_scale");
  if (scale && arguments[*scale].isNone()) {
    const auto gradients = op.schema().argumentIndexWithName("grads");
    std::erase_if(written, [&](int i) { return gradients && i == *gradients; });
  }
  return written;
}

// Returns true if an index of aten::index is a mask, so that the size of the result depends on the
// contents of the index.
bool is_mask(const c10::IValue& index) {
  return index.isTensor() && index.toTensor().defined() &&
         (index.toTensor().scalar_type() == at::kBool ||
          index.toTensor().scalar_type() == at::kByte);
}

// Kernel of trireme::as_strided. Like at::as_strided, but `offset` counts from where the tensor
// begins in its storage: an argument of a step may be any slice of a larger tensor, and a captured
// absolute offset would be wrong in the next step.
at::Tensor as_strided_from_own_offset(const at::Tensor& self, at::IntArrayRef sizes,
                                      at::IntArrayRef strides, int64_t offset) {
  int64_t from_base = 0;
  TORCH_CHECK(!__builtin_add_overflow(self.storage_offset(), offset, &from_base), "the offset ",
              offset, " is out of range");
  return at::as_strided(self, sizes, strides, from_base);
}

// Kernel of trireme::push_gradient. Does nothing: the node marks a gradient that is pushed to the
// parameter server that holds the variable (ps/ps_step.h).
void push_gradient_placeholder(const at::Tensor&, const at::Tensor&, const at::Tensor&) {}

}  // namespace

std::string operator_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name);
}

bool is_composite(const c10::OperatorHandle& op) {
  // Some composite operators have a CPU kernel as well (silu_backward), which runs instead.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool is_allowed_operator(const std::string& name) {
  return is_own_operator(name) ||
         (name.starts_with("aten::") && allowed_names().contains(name.substr(6)));
}

std::vector<std::string> allowed_operators() {
  register_own_operators();
  std::vector<std::string> names;
  for (const std::string& name : allowed_names()) names.push_back(absl::StrCat("aten::", name));
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (is_own_operator(op.name)) names.push_back(op.name);
  }
  std::ranges::sort(names);
  return names;
}

absl::StatusOr<c10::OperatorHandle> find_allowed_operator(const std::string& name) {
  register_own_operators();
  const SplitName split = split_name(name);
  const auto op = c10::Dispatcher::singleton().findSchema(
      {absl::StrCat(split.space, "::", split.base), split.overload});
  if (!op) {
    return make_status(ErrorCode::kNotFound,
                       absl::StrCat("operator '", name, "' is not known to this LibTorch"));
  }
  // Composite operators are never on the list. They get an error of their own, since the list does
  // not explain why they are missing.
  if (!is_own_operator(name) && is_composite(*op)) {
    return make_status(
        ErrorCode::kPermissionDenied,
        absl::StrCat(
            "operator '", name,
            "' may not be used in a graph: it is made of other operators, which a captured "
            "graph contains instead"));
  }
  if (!is_allowed_operator(name)) {
    return make_status(
        ErrorCode::kPermissionDenied,
        absl::StrCat("operator '", name,
                     "' may not be used in a graph: it is not on the list of operators that only "
                     "compute on tensors (docs/operators.md)"));
  }
  return *op;
}

int generator_argument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto type = arguments[i].type();
    if (type->kind() == c10::TypeKind::GeneratorType) return static_cast<int>(i);
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (optional->getElementType()->kind() == c10::TypeKind::GeneratorType) {
        return static_cast<int>(i);
      }
    }
  }
  return -1;
}

bool is_random(const c10::OperatorHandle& op) {
  return generator_argument(op) >= 0 || op.hasTag(at::Tag::nondeterministic_seeded);
}

std::optional<c10::OperatorHandle> overload_with_generator(const c10::OperatorHandle& op) {
  if (generator_argument(op) >= 0) return std::nullopt;
  const auto& arguments = op.schema().arguments();
  for (const char* overload :
       {"generator", "low_generator", "low_generator_dtype", "Tensor_generator"}) {
    const auto other = c10::Dispatcher::singleton().findSchema({op.operator_name().name, overload});
    if (!other || other->schema().arguments().size() != arguments.size() + 1) continue;
    const int generator = generator_argument(*other);
    bool same = generator >= 0;
    for (size_t i = 0; same && i < arguments.size(); ++i) {
      const size_t there = static_cast<int>(i) < generator ? i : i + 1;
      same = other->schema().arguments()[there].name() == arguments[i].name();
    }
    if (same) return other;
  }
  return std::nullopt;
}

std::vector<int> written_arguments(const c10::OperatorHandle& op,
                                   c10::ArrayRef<c10::IValue> arguments) {
  if (op.operator_name().name.starts_with("aten::_fused_")) return written_by_fused(op, arguments);
  const UndeclaredWrite* undeclared = undeclared_write(op.operator_name().name);
  if (undeclared == nullptr || undeclared->only_if < 0) return writable_arguments(op);
  if (arguments[undeclared->only_if].toBool()) return writable_arguments(op);
  std::vector<int> written = writable_arguments(op);
  std::erase_if(written, [&](int i) {
    return std::ranges::find(undeclared->arguments, i) != undeclared->arguments.end();
  });
  return written;
}

std::vector<int> writable_arguments(const c10::OperatorHandle& op) {
  std::vector<int> written;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back(static_cast<int>(i));
  }
  if (const UndeclaredWrite* undeclared = undeclared_write(op.operator_name().name)) {
    written.insert(written.end(), undeclared->arguments.begin(), undeclared->arguments.end());
  }
  return written;
}

bool may_share_memory(const c10::OperatorHandle& op, size_t argument, size_t result) {
  const auto& schema = op.schema();
  if (schema.returns()[result].alias_info() != nullptr &&
      schema.arguments()[argument].alias_info() != nullptr) {
    return true;
  }
  const std::vector<int>* undeclared = undeclared_alias(op.operator_name().name);
  return undeclared != nullptr &&
         std::ranges::find(*undeclared, static_cast<int>(argument)) != undeclared->end();
}

bool changes_shape(const c10::OperatorHandle& op) {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::resize_",  "aten::resize_as_", "aten::t_",     "aten::transpose_",
      "aten::squeeze_", "aten::unsqueeze_", "aten::detach_"};
  return names->contains(op.operator_name().name);
}

bool takes_undefined(const c10::OperatorHandle& op) {
  return op.operator_name().name.starts_with("aten::mkldnn_rnn_layer");
}

bool is_lstm_workspace(const c10::OperatorHandle& op, size_t result) {
  return op.operator_name().name == "aten::mkldnn_rnn_layer" && result == 3;
}

bool takes_lstm_workspace(const c10::OperatorHandle& op, size_t argument) {
  return op.operator_name().name == "aten::mkldnn_rnn_layer_backward" && argument == 22;
}

bool makes_uninitialized(const c10::OperatorHandle& op) {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::empty",          "aten::empty_strided",     "aten::empty_like",
      "aten::new_empty",      "aten::new_empty_strided", "aten::empty_permuted",
      "aten::empty_quantized"};
  return names->contains(op.operator_name().name);
}

bool reads_only_metadata(const c10::OperatorHandle& op) {
  static const auto* names =
      new std::unordered_set<std::string>{"aten::size",
                                          "aten::sym_size",
                                          "aten::stride",
                                          "aten::sym_stride",
                                          "aten::numel",
                                          "aten::sym_numel",
                                          "aten::dim",
                                          "aten::storage_offset",
                                          "aten::sym_storage_offset",
                                          "aten::is_same_size",
                                          "aten::is_set_to",
                                          "aten::is_floating_point",
                                          "aten::is_complex",
                                          "aten::is_signed",
                                          "aten::is_conj",
                                          "aten::is_neg",
                                          "aten::_is_zerotensor",
                                          "aten::is_contiguous",
                                          "aten::sym_is_contiguous",
                                          "aten::is_pinned",
                                          "aten::is_coalesced",
                                          "aten::sparse_dim",
                                          "aten::_dimI",
                                          "aten::dense_dim",
                                          "aten::_dimV",
                                          "aten::result_type",
                                          "aten::can_cast",
                                          "aten::promote_types",
                                          "aten::_fused_sdp_choice",
                                          "aten::_has_compatible_shallow_copy_type",
                                          "aten::is_inference",
                                          "aten::_use_cudnn_ctc_loss",
                                          "aten::_nnpack_available",
                                          "aten::is_distributed",
                                          "aten::is_vulkan_available",
                                          "aten::_has_same_storage_numel",
                                          "aten::_debug_has_internal_overlap",
                                          "aten::is_non_overlapping_and_dense",
                                          "aten::sym_is_non_overlapping_and_dense",
                                          "aten::qscheme",
                                          "aten::_version"};
  return names->contains(op.operator_name().name);
}

bool is_data_dependent(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  static const auto* names = new std::unordered_set<std::string>{
      "aten::_local_scalar_dense", "aten::item",          "aten::equal",
      "aten::is_nonzero",          "aten::allclose",      "aten::_nnz",
      "aten::_is_all_true",        "aten::_is_any_true",  "aten::coalesce",
      "aten::_coalesce",           "aten::_to_sparse",    "aten::to_sparse",
      "aten::sparse_mask",         "aten::nonzero_numpy", "aten::unique_dim"};
  const std::string& name = op.operator_name().name;
  if (names->contains(name) || op.hasTag(at::Tag::data_dependent_output)) return true;
  if (name == "aten::index") {
    const c10::IValue& indices = arguments[1];
    if (!indices.isList()) return false;
    const auto list = indices.toList();
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_mask(list.get(i))) return true;
    }
    return false;
  }
  // With lengths given as numbers, the shape follows from those numbers.
  if (name == "aten::_ctc_loss") return op.operator_name().overload_name == "Tensor";
  return op.hasTag(at::Tag::dynamic_output_shape);
}

void register_own_operators() {
  // Never destroyed. Marked as used, because the compiler would otherwise drop the pointer and the
  // leak checker would report the library as leaked.
  [[gnu::used]] static const auto* library = [] {
    auto* made =
        new torch::Library(torch::Library::FRAGMENT, "trireme", std::nullopt, __FILE__, __LINE__);
    made->def("as_strided(Tensor(a) self, int[] sizes, int[] strides, int offset) -> Tensor(a)",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                              TORCH_FN(as_strided_from_own_offset)));
    made->def("push_gradient(Tensor(a!) variable, Tensor gradient, Tensor lr) -> ()",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                              TORCH_FN(push_gradient_placeholder)));
    define_row_operators(*made);
    return made;
  }();
}

}  // namespace trireme::internal
