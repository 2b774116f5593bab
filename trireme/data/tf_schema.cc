#include "trireme/data/tf_schema.h"

#include <cfloat>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

constexpr int64_t kMostTfRowBytes = int64_t{1} << 30;
constexpr int kMostTfAxes = 16;

// Returns true if the column's type has the number.
bool has_number(c10::ScalarType dtype, double number) {
  return with_tf_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, double>) {
      return true;
    } else if constexpr (std::is_same_v<T, float>) {
      return !std::isfinite(number) || std::abs(number) <= FLT_MAX;
    } else {
      // The largest int64 is rounded up to 2^63 as a double, which is not an int64.
      return number >= static_cast<double>(std::numeric_limits<T>::min()) &&
             number <= static_cast<double>(std::numeric_limits<T>::max()) &&
             number < 9223372036854775808.0 && number == std::floor(number);
    }
  });
}

absl::Status check_tf_type(const proto::ColumnDef& def, TfFeature* feature) {
  for (const auto dtype :
       {c10::kLong, c10::kInt, c10::kByte, c10::kBool, c10::kFloat, c10::kDouble}) {
    if (def.dtype() != static_cast<int32_t>(dtype)) continue;
    feature->dtype = dtype;
    feature->value_bytes = static_cast<int64_t>(c10::elementSize(dtype));
    feature->kind =
        dtype == c10::kFloat || dtype == c10::kDouble ? TfListKind::kFloat : TfListKind::kInt64;
  }
  if (feature->kind == TfListKind::kNone) {
    return invalid_argument(absl::StrCat("its dtype has the number ", def.dtype(),
                                         "; use int64, int32, uint8, bool, float32 or float64"));
  }
  if (def.is_text()) {
    if (feature->dtype != c10::kByte || def.sizes_size() != 1) {
      return invalid_argument(
          "it is text and needs the dtype uint8 and one size; use text_column()");
    }
    feature->kind = TfListKind::kBytes;
  }
  if (def.has_missing() && !has_number(feature->dtype, def.missing())) {
    return invalid_argument(absl::StrCat("its number for missing values is ", def.missing(),
                                         ", which does not fit into ", dtype_name(feature->dtype)));
  }
  if (def.has_missing()) feature->missing = def.missing();
  return absl::OkStatus();
}

absl::Status check_tf_sizes(const proto::ColumnDef& def, TfFeature* feature) {
  if (def.sizes_size() > kMostTfAxes) {
    return invalid_argument(
        absl::StrCat("it has ", def.sizes_size(), " sizes; at most ", kMostTfAxes, " are allowed"));
  }
  feature->is_ragged = def.sizes_size() > 0 && def.sizes(0) == -1;
  for (int i = feature->is_ragged ? 1 : 0; i < def.sizes_size(); ++i) {
    const int64_t size = def.sizes(i);
    if (size < 1) {
      return invalid_argument(absl::StrCat("size ", i, " is ", size,
                                           "; sizes are at least 1, and only the first may be -1"));
    }
    if (size > kMostTfRowBytes || feature->values * size > kMostTfRowBytes) {
      return invalid_argument(absl::StrCat("it has more than ", kMostTfRowBytes, " values"));
    }
    feature->values *= size;
    feature->sizes.push_back(size);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const TfExampleSchema>> TfExampleSchema::make(
    const google::protobuf::RepeatedPtrField<proto::ColumnDef>& columns) {
  if (columns.empty()) {
    return invalid_argument("TFRecord files need columns; name at least one feature to read");
  }
  std::vector<TfFeature> features;
  double row_bytes = 0;
  for (const proto::ColumnDef& def : columns) {
    TfFeature feature{.name = def.name()};
    absl::Status status = check_tf_type(def, &feature);
    if (status.ok()) status = check_tf_sizes(def, &feature);
    if (status.ok() && def.name().empty()) status = invalid_argument("it has no name");
    if (!status.ok()) {
      return invalid_argument(absl::StrCat("column '", def.name(), "': ", describe(status)));
    }
    row_bytes += feature.is_ragged ? static_cast<double>(sizeof(int64_t))
                                   : static_cast<double>(feature.values) *
                                         static_cast<double>(feature.value_bytes);
    features.push_back(std::move(feature));
  }
  if (row_bytes > static_cast<double>(kMostTfRowBytes)) {
    return invalid_argument(absl::StrCat("the columns take ", row_bytes,
                                         " bytes for one record; at most ", kMostTfRowBytes,
                                         " are allowed"));
  }
  std::shared_ptr<const TfExampleSchema> schema(
      new TfExampleSchema(std::move(features), static_cast<int64_t>(row_bytes)));
  for (int i = 0; i < columns.size(); ++i) {
    if (schema->find(columns[i].name()) != i) {
      return invalid_argument(absl::StrCat("there are two columns '", columns[i].name(),
                                           "'; the names of columns must be unique"));
    }
  }
  return schema;
}

TfExampleSchema::TfExampleSchema(std::vector<TfFeature> features, int64_t row_bytes)
    : features_(std::move(features)), row_bytes_(row_bytes) {
  for (const TfFeature& feature : features_) {
    columns_.try_emplace(feature.name, static_cast<int>(columns_.size()));
  }
}

int TfExampleSchema::find(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? -1 : found->second;
}

}  // namespace trireme::internal
