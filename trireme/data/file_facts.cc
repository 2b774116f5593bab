#include "trireme/data/file_facts.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/data/csv_format.h"
#include "trireme/data/example_element.h"
#include "trireme/data/step_limits.h"
#include "trireme/data/text_format.h"
#include "trireme/data/tf_record_format.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

constexpr int kMostColumns = 100'000;
constexpr uint32_t kMostDecoders = 64;

bool can_be_read(c10::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong || dtype == at::kInt ||
         dtype == at::kByte || dtype == at::kBool;
}

// `any_dtype` is true for formats that have tensors of their own.
absl::Status check_column(const Column& column, bool any_dtype) {
  const auto fault = [&](const std::string& text) {
    return invalid_argument(absl::StrCat("column '", column.name, "' ", text));
  };
  TRIREME_RETURN_IF_ERROR(dtype_to_wire(column.dtype).status());
  if (!any_dtype && !can_be_read(column.dtype)) {
    return fault(absl::StrCat("has dtype ", dtype_name(column.dtype),
                              "; use float32, float64, int64, int32, uint8 or bool"));
  }
  for (size_t i = 0; i < column.sizes.size(); ++i) {
    if (column.sizes[i] < 0 && (column.sizes[i] != -1 || i > 0)) {
      return fault(
          absl::StrCat("has size ", column.sizes[i], "; only the first size may be -1, for any"));
    }
  }
  if (column.is_text && (column.dtype != at::kByte || column.sizes.size() != 1)) {
    return fault("is text, and needs the dtype uint8 and one size; use text_column()");
  }
  return absl::OkStatus();
}

absl::Status add_columns(DatasetStep& step,
                         const google::protobuf::RepeatedPtrField<proto::ColumnDef>& columns,
                         bool any_dtype) {
  if (columns.empty()) return invalid_argument("it has no columns; give at least one");
  if (columns.size() > kMostColumns) {
    return invalid_argument(absl::StrCat("it has ", columns.size(), " columns; at most ",
                                         kMostColumns, " are allowed"));
  }
  std::set<std::string> names;
  ElementSpec spec;
  for (const proto::ColumnDef& def : columns) {
    const Column column = from_def(def);
    TRIREME_RETURN_IF_ERROR(check_column(column, any_dtype));
    if (!names.insert(column.name).second) {
      return invalid_argument(absl::StrCat("there are two columns '", column.name, "'"));
    }
    spec.push_back({column.dtype, column.sizes});
  }
  TRIREME_RETURN_IF_ERROR(check_bytes(bytes_of(spec)));
  step.specs = {std::move(spec)};
  step.count = kUnknownCount;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RecordFormat>> make_format(
    const proto::DatasetStep::Files& files) {
  switch (files.format_case()) {
    case proto::DatasetStep::Files::kTextLines:
      return make_text_format(files);
    case proto::DatasetStep::Files::kCsv:
      return make_csv_format(files);
    case proto::DatasetStep::Files::kTfRecord:
      return make_tf_record_format(files);
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status add_files(DatasetStep& step) {
  const proto::DatasetStep::Files& files = step.def.files();
  if (files.names().empty()) return invalid_argument("it has no files; give at least one");
  if (files.format_case() == proto::DatasetStep::Files::FORMAT_NOT_SET) {
    return make_status(ErrorCode::kVersionMismatch,
                       "this version of Trireme does not know this format of files");
  }
  if (files.threads() > kMostDecoders) {
    return invalid_argument(absl::StrCat("it has ", files.threads(), " threads; at most ",
                                         kMostDecoders, " are allowed"));
  }
  TRIREME_RETURN_IF_ERROR(add_columns(step, files.columns(), files.has_safetensors()));
  TRIREME_ASSIGN_OR_RETURN(step.format, make_format(files));
  step.items = Items::kBlockRows;
  return absl::OkStatus();
}

absl::Status add_generator(DatasetStep& step) {
  // Each repetition starts with another seed, on which both elements and their number may depend.
  step.is_random = step.varies = true;
  return add_columns(step, step.def.generator().columns(), /*any_dtype=*/true);
}

proto::ColumnDef to_def(const Column& column) {
  proto::ColumnDef def;
  def.set_name(column.name);
  def.set_dtype(static_cast<int32_t>(column.dtype));
  for (const int64_t size : column.sizes) def.add_sizes(size);
  if (column.missing) def.set_missing(*column.missing);
  def.set_is_text(column.is_text);
  return def;
}

Column from_def(const proto::ColumnDef& def) {
  Column column{.name = def.name(),
                .dtype = static_cast<c10::ScalarType>(def.dtype()),
                .sizes = {def.sizes().begin(), def.sizes().end()},
                .is_text = def.is_text()};
  if (def.has_missing()) column.missing = def.missing();
  return column;
}

const char* format_name(const proto::DatasetStep::Files& files) {
  switch (files.format_case()) {
    case proto::DatasetStep::Files::kTextLines:
      return "text_lines";
    case proto::DatasetStep::Files::kCsv:
      return "csv";
    case proto::DatasetStep::Files::kTfRecord:
      return "tf_records";
    case proto::DatasetStep::Files::kParquet:
      return "parquet";
    case proto::DatasetStep::Files::kSafetensors:
      return "safetensors";
    case proto::DatasetStep::Files::FORMAT_NOT_SET:
      break;
  }
  return "files";
}

std::string describe_files(const proto::DatasetStep::Files& files) {
  if (files.names().empty()) return "";
  if (files.names_size() == 1) return files.names(0);
  return absl::StrCat(files.names(0), " and ", files.names_size() - 1, " more");
}

}  // namespace trireme::internal
