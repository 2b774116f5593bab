#include "trireme/data/csv_plan.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

// Limit for a row, so that sizes cannot overflow.
constexpr uint64_t kMostRowBytes = uint64_t{1} << 30;

template <typename T>
bool is_exact(double number) {
  // The limits are powers of two, so they are exact.
  return number == std::trunc(number) &&
         number >= static_cast<double>(std::numeric_limits<T>::min()) &&
         number < static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2;
}

// Returns false for a dtype that cannot be read, and for a number that it does not have.
bool holds_number(c10::ScalarType dtype, double number) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
      return true;
    case at::kLong:
      return is_exact<int64_t>(number);
    case at::kInt:
      return is_exact<int32_t>(number);
    case at::kByte:
      return is_exact<uint8_t>(number);
    case at::kBool:
      return number == 0 || number == 1;
    default:
      return false;
  }
}

absl::StatusOr<CsvPlan::Column> make_csv_column(const proto::ColumnDef& def) {
  const auto fault = [&](const std::string& text) {
    return invalid_argument(absl::StrCat("column '", def.name(), "' ", text));
  };
  CsvPlan::Column column{.dtype = static_cast<c10::ScalarType>(def.dtype()),
                         .sizes = {def.sizes().begin(), def.sizes().end()},
                         .is_text = def.is_text()};
  if (def.has_missing()) column.missing = def.missing();
  if (column.is_text) {
    if (column.dtype != at::kByte || column.sizes.size() != 1 || column.sizes[0] < -1 ||
        column.sizes[0] == 0) {
      return fault("is text, and needs the dtype uint8 and one size; use text_column()");
    }
    if (column.missing) return fault("is text, and cannot have a number for missing fields");
    column.width = column.sizes[0];
  } else {
    if (!holds_number(column.dtype, 0)) {
      return fault(
          "has a dtype that CSV cannot have; use float32, float64, int64, int32, uint8 or bool");
    }
    if (column.missing && !holds_number(column.dtype, *column.missing)) {
      return fault(absl::StrCat("has ", *column.missing, " for missing fields, which is not ",
                                dtype_with_article(column.dtype)));
    }
    for (const int64_t size : column.sizes) {
      if (size < 1) {
        return fault(absl::StrCat("has size ", size, "; in CSV, sizes of numbers are at least 1"));
      }
      if (size > static_cast<int64_t>(kMostRowBytes) / column.width) {
        return fault("has too many numbers");
      }
      column.width *= size;
    }
  }
  return column;
}

absl::Status check_csv_header(const proto::DatasetStep::Files::Csv& csv) {
  if (csv.delimiter().size() != 1 || std::string("\"\r\n").find(csv.delimiter()) < 3) {
    return invalid_argument(
        "the delimiter must be one character, and neither a quote nor a line end");
  }
  if (csv.columns().empty()) return invalid_argument("lines without fields cannot be read");
  if (!csv.header().empty() && !csv.has_header()) {
    return invalid_argument("it has names of fields, but the files have none");
  }
  if (!csv.header().empty() && csv.header_size() != csv.columns_size()) {
    return invalid_argument(
        absl::StrCat("it has ", csv.header_size(), " names for ", csv.columns_size(), " fields"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string dtype_with_article(c10::ScalarType dtype) {
  const std::string name = dtype_name(dtype);
  return absl::StrCat(name.starts_with('i') ? "an " : "a ", name);
}

absl::StatusOr<CsvPlan> make_csv_plan(const proto::DatasetStep::Files& def) {
  const proto::DatasetStep::Files::Csv& csv = def.csv();
  TRIREME_RETURN_IF_ERROR(check_csv_header(csv));
  CsvPlan plan{.delimiter = csv.delimiter()[0],
               .has_header = csv.has_header(),
               .header = {csv.header().begin(), csv.header().end()},
               .field_count = static_cast<size_t>(csv.columns_size())};
  for (const proto::ColumnDef& column : def.columns()) {
    TRIREME_ASSIGN_OR_RETURN(plan.columns.emplace_back(), make_csv_column(column));
    const CsvPlan::Column& made = plan.columns.back();
    if (made.width > 0) plan.row_bytes += made.width * c10::elementSize(made.dtype);
    if (plan.row_bytes > kMostRowBytes) {
      return invalid_argument(absl::StrCat("its records have more than ", kMostRowBytes, " bytes"));
    }
  }
  std::vector<size_t> used(plan.columns.size());
  for (int i = 0; i < csv.columns_size(); ++i) {
    const uint32_t number = csv.columns(i);
    if (number == 0) continue;
    if (number > plan.columns.size()) {
      return invalid_argument(absl::StrCat("field ", i + 1, " belongs to column ", number,
                                           ", but there are only ", plan.columns.size()));
    }
    const size_t column = number - 1;
    plan.fields.push_back(
        {.number = static_cast<size_t>(i),
         .column = column,
         .slot = used[column]++,
         .name = plan.header.empty() ? def.columns(column).name() : plan.header[i]});
  }
  for (size_t i = 0; i < used.size(); ++i) {
    const CsvPlan::Column& column = plan.columns[i];
    const size_t expected = column.is_text ? 1 : static_cast<size_t>(column.width);
    if (used[i] != expected) {
      return invalid_argument(absl::StrCat("column '", def.columns(i).name(), "' needs ", expected,
                                           " fields of a line, but has ", used[i]));
    }
  }
  return plan;
}

}  // namespace trireme::internal
