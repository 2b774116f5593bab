#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "trireme/data/dataset.pb.h"
#include "trireme/data/tf_list.h"

namespace trireme::internal {

// A feature of a tf.Example that is read as a column.
struct TfFeature {
  std::string name;
  TfListKind kind = TfListKind::kNone;
  c10::ScalarType dtype = at::kFloat;
  int64_t value_bytes = 4;        // size of a value of the dtype
  std::vector<int64_t> sizes;     // shape in one record, without the first size if it is ragged
  int64_t values = 1;             // product of `sizes`
  std::optional<double> missing;  // number that stands in for a feature that is missing or empty
  bool is_ragged = false;         // true if the number of values differs between records
};

// The features of tf.Examples that become the columns of a dataset. Immutable. Thread-safe.
class TfExampleSchema {
 public:
  // Checks the columns, which may come from a peer. Errors name the column.
  static absl::StatusOr<std::shared_ptr<const TfExampleSchema>> make(
      const google::protobuf::RepeatedPtrField<proto::ColumnDef>& columns);

  const std::vector<TfFeature>& features() const { return features_; }
  // Returns the number of the feature's column, or -1 if it is not read.
  int find(std::string_view name) const;
  // Returns the memory that a record takes before any values of ragged columns.
  int64_t row_bytes() const { return row_bytes_; }

 private:
  explicit TfExampleSchema(std::vector<TfFeature> features, int64_t row_bytes);

  const std::vector<TfFeature> features_;
  const int64_t row_bytes_;
  std::unordered_map<std::string_view, int> columns_;  // by the names in features_
};

}  // namespace trireme::internal
