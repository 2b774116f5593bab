#include "trireme/data/arrow_type.h"

#include <arrow/type.h>

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace trireme::internal {
namespace {

bool is_arrow_number(ArrowType type) {
  return with_arrow_type(type, [](auto) {});
}

bool is_arrow_fraction(ArrowType type) {
  return type == ArrowType::HALF_FLOAT || type == ArrowType::FLOAT || type == ArrowType::DOUBLE;
}

bool is_arrow_list(ArrowType type) {
  return type == ArrowType::LIST || type == ArrowType::LARGE_LIST ||
         type == ArrowType::FIXED_SIZE_LIST;
}

bool is_arrow_text(const arrow::DataType& type) {
  switch (type.id()) {
    case ArrowType::STRING:
    case ArrowType::BINARY:
    case ArrowType::LARGE_STRING:
    case ArrowType::LARGE_BINARY:
    case ArrowType::STRING_VIEW:
    case ArrowType::BINARY_VIEW:
    case ArrowType::FIXED_SIZE_BINARY:
      return true;
    case ArrowType::DICTIONARY:
      return is_arrow_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
    default:
      return false;
  }
}

absl::Status check_missing(const Column& column) {
  if (!column.missing) return absl::OkStatus();
  const double missing = *column.missing;
  bool fits = false;
  with_column_type(column.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kIsFraction<T>) {
      fits = true;
    } else {
      // The largest int64 is not a double, the next number is.
      const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
      fits = std::trunc(missing) == missing && missing < end &&
             missing >= static_cast<double>(std::numeric_limits<T>::min());
    }
  });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("column '", column.name, "' has `missing` ",
                                                 missing, ", which is not a number of ",
                                                 column_type_name(column.dtype)));
}

}  // namespace

const char* column_type_name(c10::ScalarType dtype) {
  const char* name = "a dtype that columns cannot have";
  with_column_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (std::is_same_v<T, bool>) name = "bool";
    if (std::is_same_v<T, uint8_t>) name = "uint8";
    if (std::is_same_v<T, int32_t>) name = "int32";
    if (std::is_same_v<T, int64_t>) name = "int64";
    if (std::is_same_v<T, float>) name = "float32";
    if (std::is_same_v<T, double>) name = "float64";
  });
  return name;
}

int64_t values_per_row(const Column& column) {
  uint64_t count = 1;  // checked sizes do not overflow, but they may if one of them is 0
  for (size_t i = is_ragged_column(column) ? 1 : 0; i < column.sizes.size(); ++i) {
    count *= static_cast<uint64_t>(column.sizes[i]);
  }
  return static_cast<int64_t>(count);
}

std::optional<Column> column_of_field(const arrow::Field& field) {
  Column column{.name = field.name()};
  const arrow::DataType* type = field.type().get();
  if (type->id() == ArrowType::FIXED_SIZE_LIST) {
    const auto& list = static_cast<const arrow::FixedSizeListType&>(*type);
    column.sizes = {list.list_size()};
    type = list.value_type().get();
  }
  switch (type->id()) {
    case ArrowType::BOOL:
      column.dtype = at::kBool;
      return column;
    case ArrowType::UINT8:
      column.dtype = at::kByte;
      return column;
    case ArrowType::INT8:
    case ArrowType::INT16:
    case ArrowType::UINT16:
    case ArrowType::INT32:
      column.dtype = at::kInt;
      return column;
    case ArrowType::UINT32:
    case ArrowType::INT64:
    case ArrowType::UINT64:
      column.dtype = at::kLong;
      return column;
    case ArrowType::HALF_FLOAT:
    case ArrowType::FLOAT:
      column.dtype = at::kFloat;
      return column;
    case ArrowType::DOUBLE:
      column.dtype = at::kDouble;
      return column;
    default:
      return std::nullopt;
  }
}

absl::Status check_arrow_type(const Column& column, const arrow::DataType& type) {
  const auto fault = [&](const std::string& expected) {
    return absl::InvalidArgumentError(absl::StrCat("column '", column.name, "' has the type ",
                                                   type.ToString(), "; expected ", expected));
  };
  if (column.is_text) {
    return is_arrow_text(type) ? absl::OkStatus() : fault("text, for a column of text");
  }
  const arrow::DataType* number = &type;
  if (!column.sizes.empty()) {
    const std::string expected =
        absl::StrCat("a list of numbers, for a column with ", column.sizes.size(), " sizes");
    if (!is_arrow_list(type.id())) return fault(expected);
    number = type.field(0)->type().get();
    if (!is_arrow_number(number->id())) return fault(expected);
    if (values_per_row(column) == 0) return fault("sizes of the column that are not 0");
  } else if (is_arrow_list(type.id()) && is_arrow_number(type.field(0)->type()->id())) {
    return fault("one number in each row; give the column `sizes` to read lists");
  } else if (!is_arrow_number(number->id())) {
    return fault(is_arrow_text(type) ? "numbers; use text_column() to read text" : "numbers");
  }
  if (is_arrow_fraction(number->id()) && column.dtype != at::kFloat &&
      column.dtype != at::kDouble) {
    return fault(absl::StrCat("integers, for a column of ", column_type_name(column.dtype),
                              "; use float32 or float64"));
  }
  return check_missing(column);
}

}  // namespace trireme::internal
