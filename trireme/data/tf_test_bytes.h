#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/crc32c.h"
#include "trireme/data/dataset.pb.h"

// Writes tf.Examples and TFRecord files, field by field, for tests: also messages that are unusual
// or not valid.
namespace trireme::internal {

inline std::string tf_varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Returns a field of bytes, such as a message within a message.
inline std::string tf_field(uint32_t field, std::string_view bytes) {
  return tf_varint(field << 3 | 2) + tf_varint(bytes.size()) + std::string(bytes);
}

template <typename T>
std::string tf_fixed(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Return features.
inline std::string tf_ints(const std::vector<int64_t>& values, bool is_packed = true) {
  std::string bytes;
  for (const int64_t value : values) {
    if (!is_packed) bytes += tf_varint(1 << 3);
    bytes += tf_varint(static_cast<uint64_t>(value));
  }
  return tf_field(3, is_packed ? tf_field(1, bytes) : bytes);
}
inline std::string tf_floats(const std::vector<float>& values, bool is_packed = true) {
  std::string bytes;
  for (const float value : values) {
    if (!is_packed) bytes += tf_varint(1 << 3 | 5);
    bytes += tf_fixed(value);
  }
  return tf_field(2, is_packed ? tf_field(1, bytes) : bytes);
}
inline std::string tf_texts(const std::vector<std::string>& values) {
  std::string bytes;
  for (const std::string& value : values) bytes += tf_field(1, value);
  return tf_field(1, bytes);
}

// Returns an entry of the map of features.
inline std::string tf_entry(std::string_view key, std::string_view feature) {
  return tf_field(1, tf_field(1, key) + tf_field(2, feature));
}
inline std::string tf_example(std::string_view entries) {
  return tf_field(1, entries);
}

inline std::string tf_masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes.data(), bytes.size());
  return tf_fixed<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8);
}
inline std::string tf_record(std::string_view data) {
  const std::string length = tf_fixed<uint64_t>(data.size());
  return length + tf_masked_crc(length) + std::string(data) + tf_masked_crc(data);
}

// Adds a column to a definition and returns it.
inline proto::ColumnDef* add_tf_column(proto::DatasetStep::Files& files, std::string name,
                                       c10::ScalarType dtype, std::vector<int64_t> sizes = {}) {
  proto::ColumnDef* column = files.add_columns();
  column->set_name(std::move(name));
  column->set_dtype(static_cast<int32_t>(dtype));
  for (const int64_t size : sizes) column->add_sizes(size);
  return column;
}
inline proto::ColumnDef* add_tf_text(proto::DatasetStep::Files& files, std::string name,
                                     int64_t bytes) {
  proto::ColumnDef* column = add_tf_column(files, std::move(name), c10::kByte, {bytes});
  column->set_is_text(true);
  return column;
}

}  // namespace trireme::internal
