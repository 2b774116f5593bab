#include "trireme/data/arrow_column.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <arrow/array.h>
#include <arrow/util/bit_util.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trireme/data/arrow_type.h"

namespace trireme::internal {
namespace {

// A value that cannot be converted: its place in the array, and the rest of the sentence about it.
struct ValueFault {
  int64_t index = 0;
  std::string what;
};

constexpr char kNullFault[] = "is null; set the column's `missing` to read a number in its place";

// Returns true if the type `To` can hold the number. Fractions are only converted to fractions,
// which may round them.
template <typename To, typename From>
bool can_hold(From value) {
  if constexpr (kIsFraction<To>) {
    return true;
  } else if constexpr (kIsFraction<From>) {
    return false;
  } else if constexpr (std::is_same_v<From, bool>) {
    return true;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value == 0 || value == 1;
  } else {
    return std::in_range<To>(value);
  }
}

template <typename From, typename To>
std::optional<ValueFault> copy_numbers(const Column& column, const arrow::Array& array, To* out) {
  const bool has_nulls = array.null_count() > 0;
  const uint8_t* const bits = array.data()->buffers[1]->data();
  const int64_t offset = array.offset(), length = array.length();
  for (int64_t i = 0; i < length; ++i) {
    if (has_nulls && array.IsNull(i)) {
      if (!column.missing) return ValueFault{i, kNullFault};
      out[i] = static_cast<To>(*column.missing);
      continue;
    }
    From value;
    if constexpr (std::is_same_v<From, bool>) {
      value = arrow::bit_util::GetBit(bits, offset + i);
    } else {
      value = reinterpret_cast<const From*>(bits)[offset + i];
    }
    if (!can_hold<To>(value)) {
      return ValueFault{i, absl::StrCat("is ", static_cast<double>(value), ", which ",
                                        column_type_name(column.dtype), " cannot hold")};
    }
    out[i] = static_cast<To>(value);
  }
  return std::nullopt;
}

// Converts an array of numbers into a tensor with one axis.
std::optional<ValueFault> convert_numbers(const Column& column,
                                          const std::shared_ptr<arrow::Array>& array,
                                          at::Tensor& out) {
  std::optional<ValueFault> fault;
  const auto options = at::TensorOptions().dtype(column.dtype);
  // Arrays without values may have no memory.
  if (array->length() == 0) {
    out = at::empty({0}, options);
    return fault;
  }
  with_arrow_type(array->type_id(), [&](auto source) {
    with_column_type(column.dtype, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      if constexpr (std::is_same_v<From, To> && !std::is_same_v<To, bool>) {
        if (array->null_count() == 0) {
          out = at::from_blob(
              const_cast<To*>(array->data()->GetValues<To>(1)), {array->length()},
              [array](void*) {}, options);
          return;
        }
      }
      out = at::empty({array->length()}, options);
      fault = copy_numbers<From>(column, *array, out.data_ptr<To>());
    });
  });
  return fault;
}

// The rows of an array of lists: row i has the values from starts[i] to starts[i + 1].
struct ListRows {
  std::shared_ptr<arrow::Array> values;
  std::vector<int64_t> starts;
};

template <typename List>
ListRows rows_of_list(const arrow::Array& array) {
  const auto& list = static_cast<const List&>(array);
  ListRows rows;
  const int64_t first = list.value_offset(0);
  rows.starts.resize(list.length() + 1);
  for (int64_t i = 0; i <= list.length(); ++i) rows.starts[i] = list.value_offset(i) - first;
  rows.values = list.values()->Slice(first, rows.starts.back());
  return rows;
}

ListRows rows_of(const arrow::Array& array) {
  if (array.type_id() == ArrowType::LIST) return rows_of_list<arrow::ListArray>(array);
  if (array.type_id() == ArrowType::LARGE_LIST) return rows_of_list<arrow::LargeListArray>(array);
  return rows_of_list<arrow::FixedSizeListArray>(array);
}

// Checks the length of each list. Sets `*has_holes` to true if rows lack their values, which are
// then filled in.
std::optional<ValueFault> check_lengths(const Column& column, const arrow::Array& array,
                                        const ListRows& rows, bool* has_holes) {
  const int64_t count = values_per_row(column);
  const bool is_ragged = is_ragged_column(column);
  for (int64_t i = 0; i < array.length(); ++i) {
    const int64_t length = rows.starts[i + 1] - rows.starts[i];
    const bool is_null = array.IsNull(i);
    if (is_null && !column.missing) return ValueFault{i, kNullFault};
    if (is_ragged ? length % count == 0 : length == count && !is_null) continue;
    if (!is_ragged && column.missing && (is_null || length == 0)) {
      *has_holes = true;
      continue;
    }
    return ValueFault{i, absl::StrCat("has ", length, " values; expected ",
                                      is_ragged ? "a multiple of " : "", count)};
  }
  return std::nullopt;
}

std::optional<ValueFault> convert_lists(const Column& column, const arrow::Array& array,
                                        BlockColumn& out) {
  const ListRows rows = rows_of(array);
  bool has_holes = false;
  if (auto fault = check_lengths(column, array, rows, &has_holes)) return fault;
  at::Tensor values;
  if (auto fault = convert_numbers(column, rows.values, values)) {
    const auto row = std::upper_bound(rows.starts.begin(), rows.starts.end(), fault->index);
    fault->index = row - rows.starts.begin() - 1;
    return fault;
  }
  const int64_t count = values_per_row(column);
  std::vector<int64_t> sizes = column.sizes;
  if (is_ragged_column(column)) {
    sizes[0] = values.numel() / count;
    for (const int64_t start : rows.starts) out.offsets.push_back(start / count);
    out.values = values.view(sizes);
    return std::nullopt;
  }
  sizes.insert(sizes.begin(), array.length());
  if (!has_holes) {
    out.values = values.view(sizes);
    return std::nullopt;
  }
  out.values = at::full(sizes, *column.missing, at::TensorOptions().dtype(column.dtype));
  const size_t bytes = static_cast<size_t>(count) * values.element_size();
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i) || rows.starts[i + 1] == rows.starts[i]) continue;
    std::memcpy(
        static_cast<char*>(out.values.data_ptr()) + i * bytes,
        static_cast<const char*>(values.const_data_ptr()) + rows.starts[i] * values.element_size(),
        bytes);
  }
  return std::nullopt;
}

// Calls `f` with a function that returns text i of the array.
template <typename F>
void with_plain_texts(const arrow::Array& array, F&& f) {
  const auto views = [&]<typename Texts>(const Texts& texts) {
    f([&texts](int64_t i) { return std::string_view(texts.GetView(i)); });
  };
  switch (array.type_id()) {
    case ArrowType::STRING:
    case ArrowType::BINARY:
      return views(static_cast<const arrow::BinaryArray&>(array));
    case ArrowType::LARGE_STRING:
    case ArrowType::LARGE_BINARY:
      return views(static_cast<const arrow::LargeBinaryArray&>(array));
    case ArrowType::STRING_VIEW:
    case ArrowType::BINARY_VIEW:
      return views(static_cast<const arrow::BinaryViewArray&>(array));
    default:
      return views(static_cast<const arrow::FixedSizeBinaryArray&>(array));
  }
}

// Copies texts, which `text` returns by their numbers. Null is an empty text.
template <typename Text>
std::optional<ValueFault> copy_texts(const Column& column, const arrow::Array& array,
                                     const Text& text, BlockColumn& out) {
  const auto options = at::TensorOptions().dtype(at::kByte);
  const int64_t rows = array.length();
  if (is_ragged_column(column)) {
    out.offsets.assign(1, 0);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t bytes = array.IsNull(i) ? 0 : static_cast<int64_t>(text(i).size());
      out.offsets.push_back(out.offsets.back() + bytes);
    }
    out.values = at::empty({out.offsets.back()}, options);
  } else {
    out.values = at::zeros({rows, column.sizes[0]}, options);
  }
  auto* const data = out.values.data_ptr<uint8_t>();
  for (int64_t i = 0; i < rows; ++i) {
    if (array.IsNull(i)) continue;
    const std::string_view value = text(i);
    if (out.offsets.empty() && static_cast<int64_t>(value.size()) > column.sizes[0]) {
      return ValueFault{i, absl::StrCat("has ", value.size(), " bytes; the column is made for ",
                                        column.sizes[0])};
    }
    const int64_t at = out.offsets.empty() ? i * column.sizes[0] : out.offsets[i];
    if (!value.empty()) std::memcpy(data + at, value.data(), value.size());
  }
  return std::nullopt;
}

std::optional<ValueFault> convert_texts(const Column& column, const arrow::Array& array,
                                        BlockColumn& out) {
  std::optional<ValueFault> fault;
  if (array.type_id() != ArrowType::DICTIONARY) {
    with_plain_texts(array, [&](auto text) { fault = copy_texts(column, array, text, out); });
    return fault;
  }
  const auto& encoded = static_cast<const arrow::DictionaryArray&>(array);
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) continue;
    const int64_t index = encoded.GetValueIndex(i);
    if (index < 0 || index >= encoded.dictionary()->length()) {
      return ValueFault{i, absl::StrCat("is number ", index, " of a dictionary of ",
                                        encoded.dictionary()->length(), " texts")};
    }
  }
  with_plain_texts(*encoded.dictionary(), [&](auto text) {
    const auto decoded = [&](int64_t i) { return text(encoded.GetValueIndex(i)); };
    fault = copy_texts(column, array, decoded, out);
  });
  return fault;
}

}  // namespace

absl::StatusOr<BlockColumn> convert_array(const Column& column,
                                          const std::shared_ptr<arrow::Array>& array,
                                          int64_t first_row) {
  BlockColumn out;
  const auto fault = column.is_text         ? convert_texts(column, *array, out)
                     : column.sizes.empty() ? convert_numbers(column, array, out.values)
                                            : convert_lists(column, *array, out);
  if (!fault) return out;
  return absl::DataLossError(absl::StrCat("row ", first_row + fault->index,
                                          " (counted from 0): column '", column.name, "' ",
                                          fault->what));
}

}  // namespace trireme::internal
