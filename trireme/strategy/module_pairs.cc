#include "trireme/strategy/module_pairs.h"

#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

[[noreturn]] void throw_different(const std::string& name, const std::string& how) {
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("'", name, "' ", how,
                           "; pull() and push() need a local module of the same structure"));
}

std::string type_of(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), " ", format_shape(tensor.sizes()));
}

void add_pairs(const torch::OrderedDict<std::string, at::Tensor>& distributed,
               const torch::OrderedDict<std::string, at::Tensor>& local,
               std::vector<TensorPair>& pairs) {
  for (const auto& item : local) {
    if (item.value().defined() && !distributed.contains(item.key())) {
      throw_different(item.key(), "is in the local module only");
    }
  }
  for (const auto& item : distributed) {
    if (!item.value().defined()) continue;
    const at::Tensor* other = local.find(item.key());
    if (other == nullptr || !other->defined()) {
      throw_different(item.key(), "is not in the local module");
    }
    if (type_of(*other) != type_of(item.value())) {
      throw_different(item.key(),
                      absl::StrCat("is ", type_of(item.value()), " in the distributed module and ",
                                   type_of(*other), " in the local one"));
    }
    pairs.push_back({item.key(), item.value(), *other});
  }
}

}  // namespace

std::vector<TensorPair> pair_tensors(const torch::nn::Module& distributed,
                                     const torch::nn::Module& local) {
  std::vector<TensorPair> pairs;
  add_pairs(distributed.named_parameters(), local.named_parameters(), pairs);
  add_pairs(distributed.named_buffers(), local.named_buffers(), pairs);
  return pairs;
}

void check_outside_of_functions(const char* call) {
  if (!is_capturing()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat("strategy.", call,
                           "() copies once, during the capture, and not in "
                           "replays; call it outside of the function"),
              {"", absl::StrCat("function '", captured_function(), "'")});
}

}  // namespace trireme::internal
