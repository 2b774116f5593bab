#include "trireme/coordinator/result_sums.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

std::string describe_result(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return absl::StrCat(c10::toString(tensor.scalar_type()), " ", format_shape(tensor.sizes()));
}

bool can_add(const at::Tensor& sum, const at::Tensor& result) {
  if (!sum.defined() || !result.defined()) return sum.defined() == result.defined();
  return sum.sizes() == result.sizes() && sum.scalar_type() == result.scalar_type();
}

}  // namespace

absl::Status ResultSums::add(std::vector<at::Tensor> results) {
  if (++runs_ == 1) {
    sums_ = std::move(results);
    return absl::OkStatus();
  }
  if (results.size() != sums_.size()) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("run ", runs_, " returned ", results.size(),
                                    " tensors and the runs before it ", sums_.size(),
                                    "; results can be added up only if all runs return tensors of "
                                    "the same shapes"));
  }
  const at::NoGradGuard no_gradients;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!can_add(sums_[i], results[i])) {
      return make_status(
          ErrorCode::kInvalidArgument,
          absl::StrCat("result ", i, " is ", describe_result(results[i]), " in run ", runs_,
                       " and ", describe_result(sums_[i]),
                       " before; results can be added up only if all runs return tensors of the "
                       "same shapes"));
    }
    if (!results[i].defined()) continue;
    // The tensors of the first run belong to the function, which may return a variable or an
    // element, and those of earlier attempts to a message.
    if (owns_sums_) {
      sums_[i].add_(results[i]);
    } else {
      sums_[i] = sums_[i].add(results[i]);
    }
  }
  owns_sums_ = true;
  return absl::OkStatus();
}

}  // namespace trireme::internal
