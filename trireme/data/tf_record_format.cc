// A TFRecord file is a sequence of records, with nothing before or between them. Numbers are
// little-endian:
//   uint64 length
//   uint32 masked CRC-32C of the eight bytes of the length
//   byte   data[length]
//   uint32 masked CRC-32C of the data
// A damaged length leaves no way to find the next record, so it is a fault of the file. A record
// whose data is damaged can be left out.
#include "trireme/data/tf_record_format.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/masked_crc32c.h"
#include "trireme/base/status.h"
#include "trireme/data/tf_example.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kMostTfRecordBytes = uint64_t{1} << 30;
constexpr double kMostTfBlockBytes = 4.0 * (1 << 30);
constexpr size_t kTfHeadBytes = 12, kTfFootBytes = 4;

template <typename T>
T load_tf(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Returns an empty text if the data, which the checksum follows, is as it was written.
std::string check_tf_crc(const char* data, size_t bytes, const char* what) {
  const uint32_t computed = masked_crc32c(data, bytes), written = load_tf<uint32_t>(data + bytes);
  if (computed == written) return "";
  return absl::StrFormat("the checksum of %s is 0x%08x, expected 0x%08x", what, computed, written);
}

class TfRecordFormat final : public RecordFormat {
 public:
  explicit TfRecordFormat(std::shared_ptr<const TfExampleSchema> schema)
      : schema_(std::move(schema)) {}

  bool has_lines() const override { return false; }
  absl::StatusOr<Whole> read_head(InputFile& file) const override { return Whole{}; }

  Whole split(std::string_view bytes, bool is_end, int64_t most) const override {
    Whole whole;
    while (whole.records < most && whole.bytes < bytes.size()) {
      const std::string_view rest = bytes.substr(whole.bytes);
      uint64_t missing = kTfHeadBytes + kTfFootBytes - rest.size();
      if (rest.size() >= kTfHeadBytes) {
        const auto length = load_tf<uint64_t>(rest.data());
        whole.fault = check_tf_crc(rest.data(), 8, "the record's length");
        if (!whole.fault.empty()) {
          whole.fault += "; the file is damaged, is compressed, or is not a TFRecord file";
          return whole;
        }
        if (length > kMostTfRecordBytes) {
          whole.fault = absl::StrCat("the record has ", length, " bytes; at most ",
                                     kMostTfRecordBytes, " are allowed");
          return whole;
        }
        const uint64_t record = kTfHeadBytes + length + kTfFootBytes;
        if (record <= rest.size()) {
          whole.bytes += record;
          ++whole.records;
          continue;
        }
        missing = record - rest.size();
      }
      if (is_end) {
        whole.fault = absl::StrCat("the file ends in the middle of a record: ",
                                   rest.size() < kTfHeadBytes ? "at least " : "", missing,
                                   " bytes are missing");
      }
      return whole;
    }
    return whole;
  }

  absl::StatusOr<BlockPtr> decode(const RawRecords& raw, const BadRecord& bad) const override {
    // LibTorch throws if there is not enough memory.
    auto block = try_call([&] { return decode_records(raw, bad); });
    if (!block.ok()) return block.status();
    return *std::move(block);
  }

 private:
  absl::StatusOr<BlockPtr> decode_records(const RawRecords& raw, const BadRecord& bad) const {
    const double block_bytes =
        static_cast<double>(raw.records) * static_cast<double>(schema_->row_bytes());
    if (block_bytes > kMostTfBlockBytes) {
      return make_status(
          ErrorCode::kResourceExhausted,
          absl::StrCat(raw.records, " records with ", schema_->row_bytes(),
                       " bytes of columns each are too many at once; make the columns smaller"));
    }
    TfExampleRows rows(*schema_, raw.records);
    std::string_view rest = raw.bytes;
    for (int64_t i = 0; i < raw.records; ++i) {
      // split() has checked the lengths.
      const uint64_t length =
          rest.size() < kTfHeadBytes + kTfFootBytes ? UINT64_MAX : load_tf<uint64_t>(rest.data());
      if (length > rest.size() - kTfHeadBytes - kTfFootBytes) {
        return make_status(ErrorCode::kInternal, "the bytes are not whole records");
      }
      const char* data = rest.data() + kTfHeadBytes;
      std::string what = check_tf_crc(data, length, "its data");
      if (!what.empty()) what += "; the file is damaged";
      if (what.empty()) what = rows.add({data, length});
      if (!what.empty()) {
        TRIREME_RETURN_IF_ERROR(bad(rest.data() - raw.bytes.data(), 0, what));
      }
      rest.remove_prefix(kTfHeadBytes + length + kTfFootBytes);
    }
    return rows.finish();
  }

  const std::shared_ptr<const TfExampleSchema> schema_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const RecordFormat>> make_tf_record_format(
    const proto::DatasetStep::Files& def) {
  TRIREME_ASSIGN_OR_RETURN(auto schema, TfExampleSchema::make(def.columns()));
  return std::make_shared<const TfRecordFormat>(std::move(schema));
}

}  // namespace trireme::internal
