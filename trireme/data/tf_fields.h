#pragma once

#include <cstdint>
#include <string_view>

namespace trireme::internal {

// Wire types of protobuf that the messages of a tf.Example have.
inline constexpr uint32_t kTfVarint = 0, kTfBytes = 2, kTfFixed32 = 5;

// Returns the tag that precedes a field.
constexpr uint32_t tf_tag(uint32_t field, uint32_t wire_type) {
  return field << 3 | wire_type;
}

// Reads the fields of a serialized message. The functions return false if the bytes are not valid.
class TfFields {
 public:
  explicit TfFields(std::string_view bytes)
      : at_(reinterpret_cast<const uint8_t*>(bytes.data())), end_(at_ + bytes.size()) {}

  bool done() const { return at_ == end_; }
  const char* at() const { return reinterpret_cast<const char*>(at_); }

  bool read_varint(uint64_t* value) {
    if (at_ != end_ && *at_ < 0x80) {
      *value = *at_++;
      return true;
    }
    *value = 0;
    for (int shift = 0; shift < 70 && at_ != end_; shift += 7) {
      const uint64_t byte = *at_++;
      *value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool read_tag(uint32_t* tag) {
    uint64_t value;
    if (!read_varint(&value) || value > UINT32_MAX || value < 8) return false;
    *tag = static_cast<uint32_t>(value);
    return true;
  }

  bool read_bytes(std::string_view* bytes) {
    uint64_t size;
    if (!read_varint(&size) || size > static_cast<uint64_t>(end_ - at_)) return false;
    *bytes = {at(), size};
    at_ += size;
    return true;
  }

  // Passes over the value of a field. Groups within groups are limited as protobuf limits them.
  bool skip(uint32_t tag, int groups = 100) {
    uint64_t value;
    std::string_view bytes;
    switch (tag & 7) {
      case kTfVarint:
        return read_varint(&value);
      case 1:
        return skip_bytes(8);
      case kTfBytes:
        return read_bytes(&bytes);
      case 3:  // a group, which ends with the tag of wire type 4
        for (uint32_t next; groups > 0 && read_tag(&next);) {
          if (next == tag + 1) return true;
          if (!skip(next, groups - 1)) return false;
        }
        return false;
      case kTfFixed32:
        return skip_bytes(4);
      default:
        return false;
    }
  }

 private:
  bool skip_bytes(int64_t count) {
    if (end_ - at_ < count) return false;
    at_ += count;
    return true;
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace trireme::internal
