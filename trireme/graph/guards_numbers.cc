// Guards of kernels for which certain numbers are dangerous. On x86, an integer division traps if
// its quotient does not fit, which ends the process; LAPACK follows pivots without a check and may
// loop forever on an infinity; LibTorch computes some counts without checking for overflow.
#include "trireme/graph/guards_numbers.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/any.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "trireme/graph/guard_checks.h"
#include "trireme/graph/trusted_contents.h"

namespace trireme::internal {
namespace {

// Checks the pivots of an LU factorisation, which LAPACK uses as row numbers without a check.
void guard_pivots(const at::Tensor& factors, const at::Tensor& pivots) {
  require(factors.dim() >= 2, "'LU' must be matrices");
  Sizes sizes = factors.sizes().slice(0, factors.dim() - 2).vec();
  sizes.push_back(std::min(factors.size(-1), factors.size(-2)));
  require_sizes(pivots, sizes, "pivots");
  require_range(pivots, 1, factors.size(-2) + 1, "pivots");
}

// (LU, pivots, ...)
void lu(Arguments arguments) {
  guard_pivots(dense(arguments[0], "LU"), dense(arguments[1], "pivots"));
}

// Returns the dtype in which an operator computes with two operands, if it is one for which the
// processor's integer division is used; otherwise nullopt.
std::optional<c10::ScalarType> divided_dtype(const c10::IValue& a, const c10::IValue& b) {
  const c10::ScalarType dtype = a.isTensor() && b.isTensor()
                                    ? at::result_type(a.toTensor(), b.toTensor())
                                : a.isTensor() ? at::result_type(a.toTensor(), b.toScalar())
                                               : at::result_type(a.toScalar(), b.toTensor());
  return dtype == at::kLong || dtype == at::kInt ? std::optional(dtype) : std::nullopt;
}

int64_t smallest(c10::ScalarType dtype) {
  return dtype == at::kLong ? std::numeric_limits<int64_t>::min()
                            : std::numeric_limits<int32_t>::min();
}

// Returns true if the numbers of an operand must not be read.
bool is_trusted(const c10::IValue& operand) {
  return operand.isTensor() && has_trusted_contents(operand.toTensor());
}

// Compares after converting to `dtype`, as the operator does: the 64-bit number -1 - 2^32 becomes
// -1 as a 32-bit number.
at::Tensor equals(const c10::IValue& operand, int64_t number, c10::ScalarType dtype) {
  if (operand.isTensor()) return operand.toTensor().to(dtype).eq(number);
  return at::scalar_tensor(operand.toScalar(), dtype).eq(number);
}

// The smallest integer divided by -1 is one more than the largest. The processor traps, and the
// process ends.
void division(Arguments arguments) {
  const auto dtype = divided_dtype(arguments[0], arguments[1]);
  if (!dtype || is_trusted(arguments[0]) || is_trusted(arguments[1])) return;
  const at::Tensor lowest = equals(arguments[0], smallest(*dtype), *dtype);
  if (!lowest.any().item<bool>()) return;
  require(!lowest.logical_and(equals(arguments[1], -1, *dtype)).any().item<bool>(),
          "it divides the smallest number of its dtype by -1, and the result does not fit the "
          "dtype");
}

// (self, other, rounding_mode)
void rounded_division(Arguments arguments) {
  if (arguments.size() == 3 && !arguments[2].isNone()) division(arguments);
}

// (self, other): the kernel divides by their greatest common divisor, which it may compute as -1 if
// one of them is the smallest integer.
void least_common_multiple(Arguments arguments) {
  const auto dtype = divided_dtype(arguments[0], arguments[1]);
  if (!dtype) return;
  for (const c10::IValue& operand : arguments.slice(0, 2)) {
    if (is_trusted(operand)) continue;
    require(!equals(operand, smallest(*dtype), *dtype).any().item<bool>(),
            "an argument holds the smallest number of its dtype, whose absolute value does not fit "
            "the dtype");
  }
}

// Checks the bounds of a sequence and the step between its numbers. LibTorch computes the count of
// numbers from them without checking for overflow.
void sequence(Arguments arguments) {
  constexpr double kMost = int64_t{1} << 53;
  for (const c10::IValue& argument : arguments.slice(0, std::min<size_t>(3, arguments.size()))) {
    if (!argument.isScalar() || argument.isBool() || argument.isComplexDouble()) continue;
    require(std::abs(argument.toScalar().toDouble()) <= kMost, "a number is out of range");
  }
  // (start, end, step, dtype, ...): the kernel converts the step to the dtype and divides by it.
  if (arguments.size() < 4 || !arguments[2].isScalar() || !arguments[3].isInt()) return;
  const auto dtype = static_cast<c10::ScalarType>(arguments[3].toInt());
  require(!at::isIntegralType(dtype, /*includeBool=*/true) ||
              std::abs(arguments[2].toScalar().toDouble()) >= 1,
          "'step' becomes 0 when it is converted to an integer");
}

// (self, from, to, generator): without `to`, LibTorch searches for the next representable number
// after `from` in a floating-point dtype. After the largest integer there is none.
void random_from(Arguments arguments) {
  if (arguments.size() != 4 || !arguments[2].isNone()) return;
  require(arguments[1].toInt() < std::numeric_limits<int64_t>::max(), "'from' is out of range");
}

// (self, ...): on an infinity, LAPACK may loop forever or access memory outside of its matrix.
void finite(Arguments arguments) {
  const at::Tensor& self = dense(arguments[0], "self");
  require(has_trusted_contents(self) || self.isfinite().all().item<bool>(),
          "'self' must hold finite numbers");
}

// (self, other, out) and (self, other, alpha, out): an `out` that has memory must have the shape of
// the result already, since a resize could grow it (see resize() in guards.cc).
void into_output(Arguments arguments) {
  if (arguments.size() < 3 || !is_given(arguments.back())) return;
  const at::Tensor& out = dense(arguments.back(), "out");
  if (out.storage().nbytes() == 0) return;
  const Sizes sizes =
      at::infer_size(dense(arguments[0], "self").sizes(), dense(arguments[1], "other").sizes());
  require_sizes(out, sizes, "out");
}

}  // namespace

const std::unordered_map<std::string, Guard>& number_guards() {
  static const auto* all = new std::unordered_map<std::string, Guard>{
      {"aten::lu_unpack", lu},
      {"aten::linalg_lu_solve", lu},
      {"aten::div", rounded_division},
      {"aten::div_", rounded_division},
      {"aten::floor_divide", division},
      {"aten::floor_divide_", division},
      {"aten::remainder", division},
      {"aten::remainder_", division},
      {"aten::fmod", division},
      {"aten::fmod_", division},
      {"aten::lcm", least_common_multiple},
      {"aten::lcm_", least_common_multiple},
      {"aten::add", into_output},
      {"aten::mul", into_output},
      {"aten::arange", sequence},
      {"aten::range", sequence},
      {"aten::random", random_from},
      {"aten::random_", random_from},
      {"aten::_linalg_eigvals", finite},
      {"aten::linalg_eig", finite},
  };
  return *all;
}

}  // namespace trireme::internal
