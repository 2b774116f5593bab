// Any bytes are decoded as a tf.Example or rejected, with columns of every type. A record that is
// left out does not change the records beside it.
#include <ATen/TensorOperators.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/status.h"
#include "trireme/data/tf_example.h"

namespace {

using namespace trireme;            // NOLINT(build/namespaces)
using namespace trireme::internal;  // NOLINT(build/namespaces)

// Makes a schema with a column for each type and shape: one value, three values, any number, and
// any number of pairs. The columns are named 'a', 'b' and so on.
std::shared_ptr<const TfExampleSchema> make_schema(bool has_missing) {
  proto::DatasetStep::Files def;
  char name = 'a';
  for (const auto dtype :
       {c10::kLong, c10::kInt, c10::kByte, c10::kBool, c10::kFloat, c10::kDouble, c10::kByte}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{}, {3}, {-1}, {-1, 2}}) {
      proto::ColumnDef* column = def.add_columns();
      column->set_name(std::string(1, name++));
      column->set_dtype(static_cast<int32_t>(dtype));
      for (const int64_t size : sizes) column->add_sizes(size);
      column->set_is_text(dtype == c10::kByte && def.columns_size() > 24 && sizes.size() == 1);
      if (has_missing) column->set_missing(1);
    }
  }
  return value_or_throw(TfExampleSchema::make(def.columns()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Without `missing` most inputs are rejected, with it most columns are empty.
  static const auto strict = make_schema(false), lenient = make_schema(true);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  TfExampleRows(*strict, 1).add(bytes);
  TfExampleRows alone(*lenient, 1), between(*lenient, 3);
  const bool is_valid = alone.add(bytes).empty();
  if (!between.add("").empty() || between.add(bytes).empty() != is_valid ||
      !between.add("").empty()) {
    std::abort();
  }
  const BlockPtr one = alone.finish(), three = between.finish();
  if (one->rows != (is_valid ? 1 : 0) || three->rows != one->rows + 2) std::abort();
  for (size_t i = 0; i < one->columns.size(); ++i) {
    const BlockColumn &a = one->columns[i], &b = three->columns[i];
    const bool is_ragged = !a.offsets.empty();
    if (is_ragged && b.offsets.back() != a.offsets.back()) std::abort();
    const at::Tensor same = is_ragged ? b.values : b.values.narrow(0, 1, one->rows);
    if (a.values.nbytes() != same.nbytes() ||
        (same.numel() > 0 &&
         std::memcmp(a.values.const_data_ptr(), same.const_data_ptr(), same.nbytes()) != 0)) {
      std::abort();
    }
  }
  return 0;
}
