#include "trireme/exec/mkl_warm_up.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "trireme/graph/capture_key.h"

namespace trireme::internal {

void warm_up_mkl() {
  [[maybe_unused]] static const bool done = [] {
    // These calls must not become part of a step that is being captured.
    const c10::impl::ExcludeDispatchKeyGuard unrecorded(kCaptureKey);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    using Function = at::Tensor (*)(const at::Tensor&);
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::zeros({1}, dtype);
      for (const Function function : std::initializer_list<Function>{
               at::abs,   at::acos, at::asin,  at::atan,  at::cos,  at::cosh, at::erf,
               at::erfc,  at::exp,  at::expm1, at::log,   at::log2, at::sin,  at::erfinv,
               at::log10, at::sinh, at::sqrt,  at::log1p, at::tan,  at::tanh, at::trunc}) {
        function(x);
      }
    }
    return true;
  }();
}

}  // namespace trireme::internal
