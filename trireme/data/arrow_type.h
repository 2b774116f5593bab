#pragma once

#include <arrow/type_fwd.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "trireme/data/column.h"

// The types of Arrow's arrays, and the columns that they can become.
namespace trireme::internal {

using ArrowType = arrow::Type::type;

// Returns the column that holds the numbers of a field, or nullopt if the field holds anything but
// numbers, or lists of numbers whose length is part of the type.
std::optional<Column> column_of_field(const arrow::Field& field);

// Returns INVALID_ARGUMENT, which names the column, if values of this type cannot become values of
// the column.
absl::Status check_arrow_type(const Column& column, const arrow::DataType& type);

// Returns true if the number of values differs between rows.
inline bool is_ragged_column(const Column& column) {
  return !column.sizes.empty() && column.sizes[0] == -1;
}

// Returns the number of values in a row, without the first size if it is -1.
int64_t values_per_row(const Column& column);

// Returns the name of a dtype that columns can have.
const char* column_type_name(c10::ScalarType dtype);

// Calls `f` with a value of the type in which Arrow keeps such numbers. Returns false if the type
// is not one of numbers.
template <typename F>
bool with_arrow_type(ArrowType type, F&& f) {
  switch (type) {
    case ArrowType::BOOL:
      return f(bool{}), true;
    case ArrowType::INT8:
      return f(int8_t{}), true;
    case ArrowType::UINT8:
      return f(uint8_t{}), true;
    case ArrowType::INT16:
      return f(int16_t{}), true;
    case ArrowType::UINT16:
      return f(uint16_t{}), true;
    case ArrowType::INT32:
    case ArrowType::DATE32:
    case ArrowType::TIME32:
      return f(int32_t{}), true;
    case ArrowType::UINT32:
      return f(uint32_t{}), true;
    case ArrowType::INT64:
    case ArrowType::DATE64:
    case ArrowType::TIME64:
    case ArrowType::TIMESTAMP:
    case ArrowType::DURATION:
      return f(int64_t{}), true;
    case ArrowType::UINT64:
      return f(uint64_t{}), true;
    case ArrowType::HALF_FLOAT:
      return f(c10::Half{}), true;
    case ArrowType::FLOAT:
      return f(float{}), true;
    case ArrowType::DOUBLE:
      return f(double{}), true;
    default:
      return false;
  }
}

// Calls `f` with a value of the type of a column. Returns false if columns cannot have the dtype.
template <typename F>
bool with_column_type(c10::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kBool:
      return f(bool{}), true;
    case at::kByte:
      return f(uint8_t{}), true;
    case at::kInt:
      return f(int32_t{}), true;
    case at::kLong:
      return f(int64_t{}), true;
    case at::kFloat:
      return f(float{}), true;
    case at::kDouble:
      return f(double{}), true;
    default:
      return false;
  }
}

// True for the types of numbers that are not integers.
template <typename T>
inline constexpr bool kIsFraction = std::is_floating_point_v<T> || std::is_same_v<T, c10::Half>;

}  // namespace trireme::internal
