#include "trireme/graph/graph_header.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr uint32_t kGraphFormat = 1;
constexpr int kMaxDimensions = 64;

}  // namespace

absl::Status check_header(const proto::GraphDef& def, size_t constants) {
  if (def.format() != kGraphFormat) {
    return make_status(ErrorCode::kVersionMismatch,
                       absl::StrCat("the graph has format ", def.format(),
                                    "; this version reads format ", kGraphFormat));
  }
  if (def.values_size() > kMaxValues) {
    return invalid_argument(absl::StrCat("the graph has ", def.values_size(), " values; at most ",
                                         kMaxValues, " are allowed"));
  }
  if (def.constants_size() != static_cast<int>(constants)) {
    return invalid_argument(absl::StrCat("the graph names ", def.constants_size(),
                                         " constants, but ", constants, " came with it"));
  }
  // A plan has an entry for each input, used or not. Inputs without a value are allowed, since a
  // graph need not use all of them, but not without limit.
  if (def.inputs() > static_cast<uint32_t>(def.values_size()) + (1u << 16)) {
    return invalid_argument(absl::StrCat("the graph asks for ", def.inputs(), " inputs, but has ",
                                         def.values_size(), " values"));
  }
  if (def.default_dtype() != 0) {
    const auto dtype = static_cast<c10::ScalarType>(def.default_dtype() - 1);
    if (def.default_dtype() > static_cast<uint32_t>(c10::ScalarType::Undefined)) {
      return invalid_argument(
          absl::StrCat("the graph has the unknown default dtype ", def.default_dtype() - 1));
    }
    const auto own = c10::get_default_dtype_as_scalartype();
    if (dtype != own) {
      return make_status(
          ErrorCode::kFailedPrecondition,
          absl::StrCat("an operator of the graph makes floats out of integers, and was captured "
                       "with the default dtype ",
                       c10::toString(dtype), ", while this process has ", c10::toString(own),
                       ". Convert the integers with to() in the function"),
          {"", absl::StrCat("graph '", def.name(), "'")});
    }
  }
  std::unordered_set<std::string> names;
  for (const proto::Variable& variable : def.variables()) {
    if (!names.insert(variable.name()).second) {
      return invalid_argument(absl::StrCat("two variables are named '", variable.name(), "'"));
    }
    TRIREME_RETURN_IF_ERROR(check_type(variable.type()));
    if (variable.device_reason() > static_cast<uint32_t>(def.scopes_size())) {
      return invalid_argument(
          absl::StrCat("variable '", variable.name(), "' names a scope that does not exist"));
    }
  }
  return absl::OkStatus();
}

absl::Status check_type(const proto::TensorType& type) {
  if (type.dtype() < 0 || type.dtype() >= static_cast<int>(c10::ScalarType::Undefined)) {
    return invalid_argument(absl::StrCat("a tensor has the unknown dtype ", type.dtype()));
  }
  if (type.sizes_size() > kMaxDimensions ||
      (type.strides_size() != type.sizes_size() && !type.sparse())) {
    return invalid_argument(absl::StrCat("a tensor has ", type.sizes_size(), " sizes and ",
                                         type.strides_size(), " strides"));
  }
  for (int64_t size : type.sizes()) {
    if (size < 0) return invalid_argument(absl::StrCat("a tensor has the size ", size));
  }
  return absl::OkStatus();
}

bool is_dense(const proto::TensorType& type) {
  if (type.sparse()) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int i = 0; i < type.sizes_size(); ++i) {
    if (type.sizes(i) == 0) return false;
    if (type.sizes(i) > 1) dimensions.emplace_back(type.strides(i), type.sizes(i));
  }
  std::ranges::sort(dimensions);
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

}  // namespace trireme::internal
