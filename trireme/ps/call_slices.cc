#include "trireme/ps/call_slices.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme::internal {

VariableScope to_scope(const VariableScopeDef& proto) {
  return {proto.job(), proto.generation(), proto.container()};
}

absl::Status malformed_request(const std::string& what) {
  return make_status(ErrorCode::kInvalidArgument, absl::StrCat("malformed request: ", what));
}

absl::StatusOr<RowCounts> row_counts(const google::protobuf::RepeatedField<uint64_t>& field,
                                     size_t variables, const Message& message) {
  RowCounts counts(variables);
  if (field.empty()) return counts;
  if (static_cast<size_t>(field.size()) != variables) {
    return malformed_request(
        absl::StrCat(field.size(), " row counts for ", variables, " variables"));
  }
  uint64_t carried = 0;
  for (const at::Tensor& tensor : message.tensors) carried += tensor.nbytes();
  for (size_t i = 0; i < variables; ++i) {
    const uint64_t rows = field[static_cast<int>(i)];
    if (rows == 0) continue;
    if (rows - 1 > carried / sizeof(int64_t)) {
      return malformed_request(absl::StrCat("it names ", rows - 1, " rows, but carries fewer ids"));
    }
    counts[i] = rows - 1;
  }
  return counts;
}

TensorShape ids_shape(int64_t count) {
  return {c10::kLong, {count}};
}

absl::StatusOr<TensorShape> slice_shape(const StoredVariable& variable,
                                        std::optional<int64_t> rows) {
  TensorShape shape = TensorShape::of(variable.tensor);
  if (!rows) return shape;
  if (shape.sizes.empty()) {
    return make_status(ErrorCode::kInvalidArgument, "a scalar has no rows", variable.object());
  }
  shape.sizes[0] = 1;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(shape.bytes(), static_cast<uint64_t>(*rows), &bytes) ||
      bytes > kMostCallBytes) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("rejected: ", *rows, " of its rows exceed the limit of ",
                                    kMostCallBytes, " bytes for a call; use several calls"),
                       variable.object());
  }
  shape.sizes[0] = *rows;
  return shape;
}

}  // namespace trireme::internal
