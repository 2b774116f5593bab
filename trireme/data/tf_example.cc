// A tf.Example is a protobuf message, which is decoded here from its wire format without building
// messages:
//
//   Example   { Features features = 1; }
//   Features  { map<string, Feature> feature = 1; }
//   Feature   { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }
//   *List     { repeated value = 1; }
//
// An entry of the map is a message { string key = 1; Feature value = 2; }. Numbers of a list are
// packed or come one by one. A first walk finds the bytes of each feature that is read, and a
// second one decodes them into the columns. So the last one of several entries with the same key
// wins, as it does in protobuf. A message that comes in several parts is merged by putting the
// bytes of its parts together, which is how protobuf defines it. Unknown fields are passed over.
// Small entries and lists that have nothing unusual, which most files consist of, are recognized by
// their first bytes.
#include "trireme/data/tf_example.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/data/tf_fields.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

constexpr size_t kMostTfGuesses = 1024;
constexpr char kNotAnExample[] = "its data is not a valid tf.Example; write the record again";

const char* tf_list_name(TfListKind kind) {
  return kind == TfListKind::kBytes ? "a BytesList"
                                    : (kind == TfListKind::kFloat ? "a FloatList" : "an Int64List");
}

// Returns the first two bytes of a field of fewer than 128 bytes.
constexpr uint32_t tf_head(uint32_t tag, size_t size) {
  return tag | static_cast<uint32_t>(size) << 8;
}

// Finds the key and the value of an entry of the map that has one of each, in this order and of
// fewer than 128 bytes. Returns false for all others, valid or not.
bool read_plain_entry(std::string_view entry, std::string_view* key, std::string_view* value) {
  if (entry.size() < 4) return false;
  const size_t key_size = static_cast<uint8_t>(entry[1]);
  if (entry[0] != tf_tag(1, kTfBytes) || key_size >= 0x80 || entry.size() < key_size + 4) {
    return false;
  }
  const size_t size = entry.size() - key_size - 4;
  uint16_t head;
  std::memcpy(&head, entry.data() + key_size + 2, sizeof(head));
  if (size >= 0x80 || head != tf_head(tf_tag(2, kTfBytes), size)) return false;
  *key = {entry.data() + 2, key_size};
  *value = {entry.data() + key_size + 4, size};
  return true;
}

// Finds the text or the packed numbers of a feature with one list of this kind, which has one field
// of fewer than 126 bytes. Returns false for all others, valid or not.
bool read_plain_list(std::string_view feature, TfListKind kind, std::string_view* values) {
  if (feature.size() < 4 || feature.size() >= 0x80) return false;
  const size_t size = feature.size() - 4;
  uint32_t heads;
  std::memcpy(&heads, feature.data(), sizeof(heads));
  if (heads != (tf_head(tf_tag(static_cast<uint32_t>(kind), kTfBytes), size + 2) |
                tf_head(tf_tag(1, kTfBytes), size) << 16)) {
    return false;
  }
  *values = feature.substr(4);
  return true;
}

}  // namespace

TfExampleRows::TfExampleRows(const TfExampleSchema& schema, int64_t most)
    : schema_(schema), slots_(schema.features().size()), found_(schema.features().size()) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const TfFeature& feature = schema.features()[i];
    if (feature.is_ragged) slots_[i].offsets = {0};
    if (feature.is_ragged) slots_[i].offsets.reserve(most + 1);
    slots_[i].capacity = most * feature.values;
    slots_[i].memory = at::empty({slots_[i].capacity}, feature.dtype);
    slots_[i].data = static_cast<char*>(slots_[i].memory.data_ptr());
  }
}

std::string TfExampleRows::add(std::string_view example) {
  std::fill(found_.begin(), found_.end(), std::string_view());
  joined_.clear();
  if (!find_features(example)) return kNotAnExample;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (add_feature(i)) continue;
    for (size_t k = 0; k <= i; ++k) {
      Slots& slots = slots_[k];
      if (slots.offsets.empty()) continue;
      slots.offsets.resize(rows_ + 1);
      slots.used = slots.offsets.back() * schema_.features()[k].values;
    }
    return std::exchange(fault_, "");
  }
  ++rows_;
  return "";
}

// Finds the bytes of the features that are read, in found_. Returns false if the record is not
// valid.
bool TfExampleRows::find_features(std::string_view example) {
  TfFields fields(example);
  size_t position = 0;
  while (!fields.done()) {
    uint32_t tag;
    std::string_view features, entry;
    if (!fields.read_tag(&tag)) return false;
    if (tag != tf_tag(1, kTfBytes)) {
      if (!fields.skip(tag)) return false;
      continue;
    }
    if (!fields.read_bytes(&features)) return false;
    TfFields entries(features);
    while (!entries.done()) {
      if (!entries.read_tag(&tag)) return false;
      if (tag != tf_tag(1, kTfBytes)) {
        if (!entries.skip(tag)) return false;
        continue;
      }
      if (!entries.read_bytes(&entry) || !find_entry(entry, position++)) return false;
    }
  }
  return true;
}

bool TfExampleRows::find_entry(std::string_view entry, size_t position) {
  std::string_view key, value, part;
  if (read_plain_entry(entry, &key, &value)) {
    keep_entry(key, value, position);
    return true;
  }
  TfFields fields(entry);
  bool has_value = false;
  std::string* joined = nullptr;
  while (!fields.done()) {
    uint32_t tag;
    if (!fields.read_tag(&tag)) return false;
    if (tag == tf_tag(1, kTfBytes)) {
      if (!fields.read_bytes(&key)) return false;
    } else if (tag == tf_tag(2, kTfBytes)) {
      if (!fields.read_bytes(&part)) return false;
      if (!has_value) {
        value = part;
      } else {
        if (joined == nullptr) joined = &joined_.emplace_back(value);
        value = joined->append(part);
      }
      has_value = true;
    } else if (!fields.skip(tag)) {
      return false;
    }
  }
  keep_entry(key, value, position);
  return true;
}

void TfExampleRows::keep_entry(std::string_view key, std::string_view value, size_t position) {
  const int column = column_of(key, position);
  if (column >= 0) found_[column] = value;
}

// Returns the number of a feature's column, or -1 if it is not read. Programs often write the
// features in the same order for each record, and then no hash is needed.
int TfExampleRows::column_of(std::string_view key, size_t position) {
  if (position < guesses_.size() && guesses_[position].key == key) return guesses_[position].column;
  const int column = schema_.find(key);
  if (position < guesses_.size()) {
    guesses_[position] = {key, column};
  } else if (position < kMostTfGuesses) {
    guesses_.push_back({key, column});
  }
  return column;
}

bool TfExampleRows::add_feature(size_t column) {
  const TfFeature& feature = schema_.features()[column];
  TfListKind kind;
  std::string_view list;
  if (read_plain_list(found_[column], feature.kind, &list)) {
    return feature.kind == TfListKind::kBytes ? put_text(column, list) : put_numbers(column, list);
  }
  if (!find_tf_list(found_[column], &joined_list_, &kind, &list)) return fail(kNotAnExample);
  if (kind == TfListKind::kNone) return add_missing(column);
  if (kind != feature.kind) {
    return fail("feature '", feature.name, "' is ", tf_list_name(kind), ", column has ",
                feature.kind == TfListKind::kBytes ? "text" : dtype_name(feature.dtype));
  }
  return kind == TfListKind::kBytes ? add_text(column, list) : add_numbers(column, list);
}

// Adds a row for a feature that is not there or has no values.
bool TfExampleRows::add_missing(size_t column) {
  const TfFeature& feature = schema_.features()[column];
  if (!feature.missing) {
    return fail("feature '", feature.name,
                "' is missing; set the column's `missing` to accept that");
  }
  const int64_t count = feature.is_ragged ? 0 : feature.values;
  char* to = place(column, count);
  with_tf_type(feature.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(reinterpret_cast<T*>(to), count, static_cast<T>(*feature.missing));
  });
  return true;
}

bool TfExampleRows::add_text(size_t column, std::string_view list) {
  const TfFeature& feature = schema_.features()[column];
  TfFields fields(list);
  std::string_view text, value;
  int64_t count = 0;
  while (!fields.done()) {
    uint32_t tag;
    if (!fields.read_tag(&tag)) return fail(kNotAnExample);
    if (tag != tf_tag(1, kTfBytes)) {
      if (!fields.skip(tag)) return fail(kNotAnExample);
      continue;
    }
    if (!fields.read_bytes(&value)) return fail(kNotAnExample);
    if (count++ == 0) text = value;
  }
  if (count == 0 && feature.missing) return add_missing(column);
  if (count != 1) {
    return fail("feature '", feature.name, "' has ", count, " values, expected 1");
  }
  return put_text(column, text);
}

bool TfExampleRows::put_text(size_t column, std::string_view text) {
  const TfFeature& feature = schema_.features()[column];
  const auto size = static_cast<int64_t>(text.size());
  if (!feature.is_ragged && size > feature.values) {
    return fail("feature '", feature.name, "' has a text of ", size, " bytes, but the column has ",
                feature.values);
  }
  const int64_t room = feature.is_ragged ? size : feature.values;
  char* to = place(column, room);
  std::memcpy(to, text.data(), text.size());
  std::memset(to + size, 0, room - size);
  return true;
}

bool TfExampleRows::add_numbers(size_t column, std::string_view list) {
  const TfFeature& feature = schema_.features()[column];
  std::string_view run;
  if (!find_tf_run(list, feature.kind, &joined_run_, &run)) return fail(kNotAnExample);
  return put_numbers(column, run);
}

bool TfExampleRows::put_numbers(size_t column, std::string_view run) {
  const TfFeature& feature = schema_.features()[column];
  const int64_t count = count_tf_numbers(run, feature.kind);
  if (count < 0) return fail(kNotAnExample);
  if (count == 0 && feature.missing) return add_missing(column);
  if (feature.is_ragged ? count % feature.values != 0 : count != feature.values) {
    return fail("feature '", feature.name, "' has ", count, " values, expected ",
                feature.is_ragged ? "a multiple of " : "", feature.values);
  }
  std::optional<int64_t> misfit;
  char* to = place(column, count);
  const bool is_valid = put_tf_numbers(run, feature.dtype, to, &misfit);
  if (is_valid && !misfit) return true;
  if (!is_valid) return fail(kNotAnExample);
  return fail("feature '", feature.name, "' has the value ", *misfit, ", which does not fit into ",
              dtype_name(feature.dtype));
}

// Returns the memory for the current row of a column, which has this number of values.
char* TfExampleRows::place(size_t column, int64_t values) {
  const TfFeature& feature = schema_.features()[column];
  Slots& slots = slots_[column];
  const int64_t bytes = feature.value_bytes;
  if (!feature.is_ragged) return slots.data + rows_ * values * bytes;
  if (slots.used + values > slots.capacity) {
    slots.capacity = std::max(2 * slots.capacity, slots.used + values);
    at::Tensor memory = at::empty({slots.capacity}, feature.dtype);
    auto* data = static_cast<char*>(memory.data_ptr());
    if (slots.used > 0) std::memcpy(data, slots.data, slots.used * bytes);
    slots.memory = std::move(memory);
    slots.data = data;
  }
  char* to = slots.data + slots.used * bytes;
  slots.used += values;
  slots.offsets.push_back(slots.used / feature.values);
  return to;
}

BlockPtr TfExampleRows::finish() {
  auto block = std::make_shared<Block>();
  block->rows = rows_;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const TfFeature& feature = schema_.features()[i];
    Slots& slots = slots_[i];
    const int64_t rows = feature.is_ragged ? slots.used / feature.values : rows_;
    std::vector<int64_t> sizes = {rows};
    sizes.insert(sizes.end(), feature.sizes.begin(), feature.sizes.end());
    block->columns.push_back(
        {slots.memory.narrow(0, 0, rows * feature.values).view(sizes), std::move(slots.offsets)});
  }
  return block;
}

}  // namespace trireme::internal
