#include "trireme/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/strict_json.h"

namespace trireme::internal {
namespace {

using c10::ScalarType;
using Json = nlohmann::json;

constexpr int kMostHeaderDepth = 4;     // A header is nested three deep.
constexpr size_t kMostHeaderRank = 64;  // As in LibTorch.
constexpr char kMetadata[] = "__metadata__";

struct DtypeName {
  const char* name;
  ScalarType dtype;
};
constexpr DtypeName kDtypeNames[] = {
    {"BOOL", ScalarType::Bool},
    {"U8", ScalarType::Byte},
    {"I8", ScalarType::Char},
    {"U16", ScalarType::UInt16},
    {"I16", ScalarType::Short},
    {"U32", ScalarType::UInt32},
    {"I32", ScalarType::Int},
    {"U64", ScalarType::UInt64},
    {"I64", ScalarType::Long},
    {"F16", ScalarType::Half},
    {"BF16", ScalarType::BFloat16},
    {"F32", ScalarType::Float},
    {"F64", ScalarType::Double},
    {"C64", ScalarType::ComplexFloat},
    {"F8_E5M2", ScalarType::Float8_e5m2},
    {"F8_E4M3", ScalarType::Float8_e4m3fn},
    {"F8_E8M0", ScalarType::Float8_e8m0fnu},
};

absl::Status bad_header(const std::string& text) {
  return make_status(ErrorCode::kDataLoss, absl::StrCat("the safetensors header ", text));
}

// Returns the numbers of an array, each at most INT64_MAX.
absl::StatusOr<std::vector<int64_t>> numbers_in(const Json& value, const char* key) {
  std::vector<int64_t> numbers;
  const auto found = value.find(key);
  bool valid = found != value.end() && found->is_array();
  for (size_t i = 0; valid && i < found->size(); ++i) {
    const Json& number = (*found)[i];
    valid = number.is_number_unsigned() &&
            number.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
    if (valid) numbers.push_back(number.get<int64_t>());
  }
  if (!valid) return invalid_argument(absl::StrCat("has no valid '", key, "'"));
  return numbers;
}

absl::StatusOr<SafetensorsEntry> entry_of(const std::string& name, const Json& value, uint64_t data,
                                          uint64_t data_bytes) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype")) {
    return invalid_argument("does not have exactly the keys dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  entry.name = name;
  const auto* dtype =
      std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                   [&](const DtypeName& known) { return value["dtype"] == known.name; });
  if (dtype == std::end(kDtypeNames)) return invalid_argument("has a dtype that is not known");
  entry.dtype = dtype->dtype;
  TRIREME_ASSIGN_OR_RETURN(entry.sizes, numbers_in(value, "shape"));
  TRIREME_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, numbers_in(value, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      static_cast<uint64_t>(offsets[1]) > data_bytes) {
    return invalid_argument("does not lie inside the file");
  }
  entry.begin = data + static_cast<uint64_t>(offsets[0]);
  entry.end = data + static_cast<uint64_t>(offsets[1]);
  bool empty = false, valid = entry.sizes.size() <= kMostHeaderRank;
  uint64_t bytes = c10::elementSize(entry.dtype);
  for (const int64_t size : entry.sizes) {
    empty = empty || size == 0;
    // A dimension of zero must not hide an overflow of the others: strides are products, too.
    if (size > 0 && __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) {
      valid = false;
    }
  }
  if (!valid || bytes > uint64_t{std::numeric_limits<int64_t>::max()} ||
      (empty ? 0 : bytes) != entry.end - entry.begin) {
    return invalid_argument("has a shape that does not belong to its length");
  }
  return entry;
}

}  // namespace

absl::StatusOr<uint64_t> safetensors_header_bytes(std::string_view prefix, uint64_t file_bytes) {
  if (prefix.size() < kSafetensorsPrefix || file_bytes < kSafetensorsPrefix) {
    return bad_header("is cut off: the file has less than 8 bytes");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kSafetensorsPrefix; ++i) {
    length |= uint64_t{static_cast<uint8_t>(prefix[i])} << (8 * i);
  }
  if (length > kMostSafetensorsJson || length > file_bytes - kSafetensorsPrefix) {
    return bad_header(absl::StrCat("claims to have ", length, " bytes, but the file has ",
                                   file_bytes, " and at most ", kMostSafetensorsJson,
                                   " are allowed"));
  }
  return kSafetensorsPrefix + length;
}

absl::StatusOr<SafetensorsHeader> parse_safetensors_header(std::string_view header,
                                                           uint64_t file_bytes) {
  SafetensorsHeader result;
  TRIREME_ASSIGN_OR_RETURN(result.bytes, safetensors_header_bytes(header, file_bytes));
  if (header.size() != result.bytes) return bad_header("is cut off");
  header.remove_prefix(kSafetensorsPrefix);
  if (!header.starts_with('{')) return bad_header("does not begin with '{'");
  absl::StatusOr<Json> value = parse_strict_json(header, kMostHeaderDepth);
  if (!value.ok()) return bad_header(std::string(value.status().message()));

  for (const auto& [name, entry] : value->items()) {
    if (name == kMetadata) {
      if (!entry.is_object()) return bad_header("has metadata that is not an object");
      for (const auto& [key, text] : entry.items()) {
        if (!text.is_string()) return bad_header("has metadata that is not text");
        result.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> tensor =
        entry_of(name, entry, result.bytes, file_bytes - result.bytes);
    if (!tensor.ok()) {
      return bad_header(
          absl::StrCat("is not valid: tensor '", name, "' ", tensor.status().message()));
    }
    result.tensors.push_back(*std::move(tensor));
  }
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  uint64_t end = result.bytes;
  for (const SafetensorsEntry& tensor : result.tensors) {
    if (tensor.begin != end) {
      return bad_header(absl::StrCat("is not valid: tensor '", tensor.name,
                                     "' overlaps another one, or has a gap before it"));
    }
    end = tensor.end;
  }
  if (end != file_bytes) {
    return bad_header(absl::StrCat("describes ", end, " bytes, but the file has ", file_bytes));
  }
  return result;
}

std::string safetensors_json(const std::vector<SafetensorsEntry>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  // Written piece by piece, so that the entries are in the order of the file.
  const auto text = [](const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string json = "{";
  if (!metadata.empty()) absl::StrAppend(&json, "\"", kMetadata, "\":", text(metadata));
  for (const SafetensorsEntry& tensor : tensors) {
    const Json entry = {{"dtype", safetensors_dtype(tensor.dtype)},
                        {"shape", tensor.sizes},
                        {"data_offsets", {tensor.begin, tensor.end}}};
    absl::StrAppend(&json, json.size() > 1 ? "," : "", text(tensor.name), ":", text(entry));
  }
  return json + "}";
}

std::string safetensors_dtype(c10::ScalarType dtype) {
  for (const DtypeName& known : kDtypeNames) {
    if (known.dtype == dtype) return known.name;
  }
  return "";
}

}  // namespace trireme::internal
