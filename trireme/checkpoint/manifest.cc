#include "trireme/checkpoint/manifest.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/manifest_check.h"
#include "trireme/checkpoint/strict_json.h"
#include "trireme/tensor/dtype.h"

namespace trireme::internal {
namespace {

using nlohmann::json;

constexpr uint64_t kFormat = 1;
constexpr int kMostDepth = 16;  // A manifest is nested nine deep.

// The text around the checksum and the inner object.
constexpr std::string_view kBeforeCrc = "{\"crc32c\":\"";
constexpr std::string_view kBeforeObject = "\",\"manifest\":";
constexpr std::string_view kAfterObject = "}\n";
constexpr size_t kCrcDigits = 8;

std::string crc_text(uint32_t crc) {
  return absl::StrFormat("%08x", crc);
}

[[noreturn]] void reject(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

// JSON has no infinities, but options of optimizers may be infinite.
json real_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double real_from_json(const json& value, const std::string& where) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  reject(absl::StrCat(where, " is not a number"));
}

json to_json(const SavedTensor& tensor) {
  return {{"name", tensor.name},
          {"file", tensor.file},
          {"offset", tensor.offset},
          {"bytes", tensor.bytes},
          {"crc32c", crc_text(tensor.crc)}};
}

json to_json(const SavedShard& shard) {
  json slots = json::array();
  for (const SavedTensor& slot : shard.slots) slots.push_back(to_json(slot));
  return {{"first", shard.first},
          {"count", shard.count},
          {"contents", to_json(shard.contents)},
          {"slots", std::move(slots)},
          {"step", real_to_json(shard.step)}};
}

json to_json(const SavedVariable& variable) {
  json options = json::object(), shards = json::array();
  for (const auto& [name, value] : variable.options) options[name] = real_to_json(value);
  for (const SavedShard& shard : variable.shards) shards.push_back(to_json(shard));
  return {{"name", variable.name},   {"dtype", dtype_name(variable.dtype)},
          {"sizes", variable.sizes}, {"trainable", variable.trainable},
          {"rule", variable.rule},   {"options", std::move(options)},
          {"slots", variable.slots}, {"shards", std::move(shards)}};
}

json to_json(const SavedFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_crc32c", crc_text(file.header_crc)}};
}

json to_json(const SavedIterator& iterator) {
  json positions = json::array();
  for (const SavedPosition& position : iterator.positions) {
    positions.push_back(
        {{"seed", position.seed}, {"next", position.next}, {"returned", position.returned}});
  }
  return {{"name", iterator.name},
          {"per_worker", iterator.per_worker},
          {"dataset", iterator.dataset},
          {"positions", std::move(positions)}};
}

template <class T>
json list_to_json(const std::vector<T>& values) {
  json list = json::array();
  for (const T& value : values) list.push_back(to_json(value));
  return list;
}

// Reads the fields of one JSON object. Throws Error if a field is missing or has another type, and
// at the end if there are fields that were not read.
class Fields {
 public:
  Fields(const json& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value.is_object()) reject(absl::StrCat(where_, " is not an object"));
  }

  const json& at(const char* key) {
    const auto found = value_.find(key);
    if (found == value_.end()) reject(absl::StrCat(where_, " has no '", key, "'"));
    ++read_;
    return *found;
  }

  bool has(const char* key) const { return value_.contains(key); }

  uint64_t number(const char* key) { return number_of(at(key), key); }

  int64_t signed_number(const char* key) {
    const uint64_t number = this->number(key);
    if (number > std::numeric_limits<int64_t>::max()) wrong(key);
    return static_cast<int64_t>(number);
  }

  double real(const char* key) { return real_from_json(at(key), absl::StrCat("'", key, "'")); }

  std::string text(const char* key) {
    const json& value = at(key);
    if (!value.is_string()) wrong(key);
    return value.get<std::string>();
  }

  bool flag(const char* key) {
    const json& value = at(key);
    if (!value.is_boolean()) wrong(key);
    return value.get<bool>();
  }

  uint32_t crc(const char* key) {
    const std::string digits = text(key);
    uint32_t crc = 0;
    if (digits.size() != kCrcDigits) wrong(key);
    for (const char c : digits) {
      const bool decimal = c >= '0' && c <= '9';
      if (!decimal && (c < 'a' || c > 'f')) wrong(key);
      crc = crc << 4 | static_cast<uint32_t>(decimal ? c - '0' : c - 'a' + 10);
    }
    return crc;
  }

  const json& list(const char* key) {
    const json& value = at(key);
    if (!value.is_array()) wrong(key);
    return value;
  }

  const json& object(const char* key) {
    const json& value = at(key);
    if (!value.is_object()) wrong(key);
    return value;
  }

  std::vector<uint64_t> numbers(const char* key) {
    std::vector<uint64_t> numbers;
    for (const json& value : list(key)) numbers.push_back(number_of(value, key));
    return numbers;
  }

  uint64_t number_of(const json& value, const char* key) const {
    if (!value.is_number_unsigned()) wrong(key);
    return value.get<uint64_t>();
  }

  void end() const {
    if (read_ != value_.size()) reject(absl::StrCat(where_, " has a key that is not known"));
  }

  [[noreturn]] void wrong(const char* key) const {
    reject(absl::StrCat(where_, ": '", key, "' is not valid"));
  }

 private:
  const json& value_;
  std::string where_;
  size_t read_ = 0;
};

c10::ScalarType dtype_named(const std::string& name) {
  for (int code = 0; code < 256; ++code) {
    const auto dtype = dtype_from_wire(static_cast<uint8_t>(code));
    if (dtype.ok() && dtype_name(*dtype) == name) return *dtype;
  }
  reject(absl::StrCat("dtype '", name, "' is not known"));
}

SavedTensor tensor_from_json(const json& value) {
  Fields fields(value, "tensor");
  SavedTensor tensor;
  tensor.name = fields.text("name");
  const uint64_t file = fields.number("file");
  if (file > std::numeric_limits<int>::max()) fields.wrong("file");
  tensor.file = static_cast<int>(file);
  tensor.offset = fields.number("offset");
  tensor.bytes = fields.number("bytes");
  tensor.crc = fields.crc("crc32c");
  fields.end();
  return tensor;
}

SavedShard shard_from_json(const json& value, const std::string& where) {
  Fields fields(value, where);
  SavedShard shard;
  shard.first = fields.signed_number("first");
  shard.count = fields.signed_number("count");
  shard.contents = tensor_from_json(fields.at("contents"));
  for (const json& slot : fields.list("slots")) shard.slots.push_back(tensor_from_json(slot));
  shard.step = fields.real("step");
  fields.end();
  return shard;
}

SavedVariable variable_from_json(const json& value) {
  Fields fields(value, "variable");
  SavedVariable variable;
  variable.name = fields.text("name");
  const std::string where = absl::StrCat("variable '", variable.name, "'");
  variable.dtype = dtype_named(fields.text("dtype"));
  for (const uint64_t size : fields.numbers("sizes")) {
    if (size > std::numeric_limits<int64_t>::max()) fields.wrong("sizes");
    variable.sizes.push_back(static_cast<int64_t>(size));
  }
  variable.trainable = fields.flag("trainable");
  variable.rule = fields.text("rule");
  for (const auto& [name, option] : fields.object("options").items()) {
    variable.options[name] = real_from_json(option, absl::StrCat(where, ": '", name, "'"));
  }
  for (const json& slot : fields.list("slots")) {
    if (!slot.is_string()) fields.wrong("slots");
    variable.slots.push_back(slot.get<std::string>());
  }
  for (const json& shard : fields.list("shards")) {
    variable.shards.push_back(shard_from_json(shard, where));
  }
  fields.end();
  return variable;
}

SavedFile file_from_json(const json& value) {
  Fields fields(value, "file");
  SavedFile file;
  file.name = fields.text("name");
  file.bytes = fields.number("bytes");
  file.header_bytes = fields.number("header_bytes");
  file.header_crc = fields.crc("header_crc32c");
  fields.end();
  return file;
}

SavedIterator iterator_from_json(const json& value) {
  Fields fields(value, "iterator");
  SavedIterator iterator;
  iterator.name = fields.text("name");
  iterator.per_worker = fields.flag("per_worker");
  iterator.dataset = fields.text("dataset");
  for (const json& position : fields.list("positions")) {
    Fields parts(position, "position");
    iterator.positions.push_back(
        {parts.number("seed"), parts.number("next"), parts.numbers("returned")});
    parts.end();
  }
  fields.end();
  return iterator;
}

SavedFence fence_from_json(const json& value) {
  Fields fields(value, "fence");
  const SavedFence fence = {fields.number("writer"), fields.number("below")};
  fields.end();
  return fence;
}

Manifest manifest_from_json(const json& value) {
  Fields fields(value, "manifest");
  Manifest manifest;
  if (const uint64_t format = fields.number("format"); format != kFormat) {
    throw Error(ErrorCode::kUnimplemented,
                absl::StrCat("the checkpoint has format version ", format, ", but only version ",
                             kFormat, " can be read; use the version of Trireme that saved it"));
  }
  manifest.step = fields.number("step");
  manifest.id = fields.text("id");
  manifest.saved_at = fields.text("saved_at");
  if (const json& metric = fields.at("metric"); !metric.is_null()) {
    manifest.metric = real_from_json(metric, "'metric'");
  }
  manifest.seed = fields.number("seed");
  for (const auto& [name, calls] : fields.object("functions").items()) {
    manifest.functions[name] = fields.number_of(calls, "functions");
  }
  for (const json& fence : fields.list("fences")) {
    manifest.fences.push_back(fence_from_json(fence));
  }
  for (const json& file : fields.list("files")) manifest.files.push_back(file_from_json(file));
  for (const json& variable : fields.list("variables")) {
    manifest.variables.push_back(variable_from_json(variable));
  }
  for (const json& iterator : fields.list("iterators")) {
    manifest.iterators.push_back(iterator_from_json(iterator));
  }
  // Checkpoints of programs without texts do not have the key.
  if (fields.has("texts")) {
    for (const auto& [name, text] : fields.object("texts").items()) {
      if (!text.is_string()) fields.wrong("texts");
      manifest.texts[name] = text.get<std::string>();
    }
  }
  fields.end();
  return manifest;
}

// Returns the inner object's text if the text around it is as to_text() writes it and the checksum
// is right.
absl::StatusOr<std::string_view> checked_object(std::string_view text) {
  const size_t before = kBeforeCrc.size() + kCrcDigits + kBeforeObject.size();
  if (text.size() < before + kAfterObject.size() || !text.starts_with(kBeforeCrc) ||
      !text.ends_with(kAfterObject) ||
      text.substr(before - kBeforeObject.size(), kBeforeObject.size()) != kBeforeObject) {
    return make_status(ErrorCode::kDataLoss, "is damaged or cut off: its outer text is not valid");
  }
  text.remove_suffix(kAfterObject.size());
  const std::string_view object = text.substr(before);
  if (text.substr(kBeforeCrc.size(), kCrcDigits) !=
      crc_text(crc32c(object.data(), object.size()))) {
    return make_status(ErrorCode::kDataLoss, "is damaged: its checksum differs");
  }
  return object;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  json fences = json::array();
  for (const SavedFence& fence : manifest.fences) {
    fences.push_back({{"writer", fence.writer}, {"below", fence.below}});
  }
  json value = {
      {"format", kFormat},
      {"step", manifest.step},
      {"id", manifest.id},
      {"saved_at", manifest.saved_at},
      {"metric", manifest.metric ? real_to_json(*manifest.metric) : json()},
      {"seed", manifest.seed},
      {"functions", manifest.functions},
      {"fences", std::move(fences)},
      {"files", list_to_json(manifest.files)},
      {"variables", list_to_json(manifest.variables)},
      {"iterators", list_to_json(manifest.iterators)},
  };
  if (!manifest.texts.empty()) value["texts"] = manifest.texts;
  const std::string object = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return absl::StrCat(kBeforeCrc.data(), crc_text(crc32c(object.data(), object.size())),
                      kBeforeObject.data(), object, kAfterObject.data());
}

absl::StatusOr<Manifest> parse_manifest(std::string_view text) {
  absl::StatusOr<std::string_view> object = checked_object(text);
  if (!object.ok()) {
    return make_status(error_code(object.status()),
                       absl::StrCat("the manifest ", object.status().message()));
  }
  absl::StatusOr<json> value = parse_strict_json(*object, kMostDepth);
  if (!value.ok()) {
    return invalid_argument(absl::StrCat("the manifest ", value.status().message()));
  }
  TRIREME_ASSIGN_OR_RETURN(Manifest manifest, try_call([&] { return manifest_from_json(*value); }));
  if (const absl::Status status = check_manifest(manifest); !status.ok()) {
    return invalid_argument(absl::StrCat("the manifest is not valid: ", status.message()));
  }
  return manifest;
}

}  // namespace trireme::internal
