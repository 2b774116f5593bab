// An event file is a sequence of records in the framing of TFRecord. Numbers are little-endian:
//   uint64 length
//   uint32 masked CRC-32C of the eight bytes of the length
//   byte   data[length], a serialized Event
//   uint32 masked CRC-32C of the data
// Numbers are written as `simple_value` and not as tensors, which TensorBoard shows in the same
// way, since programs that read files by EventAccumulator.Scalars() see only these. Histograms and
// texts are tensors with the name of the plugin that shows them.
#include "trireme/observe/event_file.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/masked_crc32c.h"
#include "trireme/base/status.h"
#include "trireme/observe/event.pb.h"

namespace trireme {
namespace {

constexpr char kFileVersion[] = "brain.Event:2";
constexpr char kPrefix[] = "events.out.tfevents.";
constexpr size_t kRecordHead = 12;
constexpr uint64_t kMostFirstRecord = 64 << 10;  // First records of files are much shorter.
constexpr int kMostNames = 1000;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns a name that no other process uses, unless it has the same host name and id.
std::string next_file_name() {
  static std::atomic<int> count = 0;
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return absl::StrFormat("%s%010d.%s.%d.%d", kPrefix, static_cast<int64_t>(wall_seconds()), host,
                         getpid(), count++);
}

void append_masked_crc(std::string& bytes, size_t begin) {
  const uint32_t masked = masked_crc32c(bytes.data() + begin, bytes.size() - begin);
  bytes.append(reinterpret_cast<const char*>(&masked), sizeof(masked));
}

proto::EventSummary::Value& add_summary(proto::Event& event, const std::string& tag, int64_t step) {
  event.set_step(step);
  proto::EventSummary::Value& value = *event.mutable_summary()->add_value();
  value.set_tag(tag);
  return value;
}

proto::EventTensor& add_tensor(proto::EventSummary::Value& value, const char* plugin,
                               proto::EventTensor::DataType dtype) {
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name(plugin);
  value.mutable_metadata()->set_data_class(proto::EventSummary::Metadata::TENSOR);
  proto::EventTensor& tensor = *value.mutable_tensor();
  tensor.set_dtype(dtype);
  tensor.mutable_tensor_shape();
  return tensor;
}

// Returns the writer that the first record of a file names, or an empty text if the file does not
// begin with one.
std::string writer_of(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file = Files::local().open(path);
  uint64_t length = 0;
  if (!file.ok() || !(*file)->read(0, &length, sizeof(length)).ok()) return "";
  if (length > kMostFirstRecord) return "";
  std::string data(length, '\0');
  proto::Event event;
  if (!(*file)->read(kRecordHead, data.data(), length).ok()) return "";
  return event.ParseFromString(data) ? event.source_metadata().writer() : "";
}

// Shortens a file to a number of bytes, if it is longer.
absl::Status shorten(const std::string& path, uint64_t bytes) {
  TRIREME_ASSIGN_OR_RETURN(const uint64_t size, Files::local().size(path));
  if (size <= bytes) return absl::OkStatus();
  std::error_code error;
  std::filesystem::resize_file(path, bytes, error);
  if (!error) return absl::OkStatus();
  return make_status(ErrorCode::kUnavailable,
                     absl::StrCat("cannot set the length of '", path, "': ", error.message()));
}

}  // namespace

EventFile::EventFile(std::string name, std::unique_ptr<OutputFile> file)
    : name_(std::move(name)), file_(std::move(file)) {}

EventFile::~EventFile() = default;

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::create(const std::string& folder,
                                                             EventFileOptions options) {
  TRIREME_RETURN_IF_ERROR(options.files->make_directories(folder));
  for (int i = 0;; ++i) {
    const std::string name = next_file_name();
    auto file = options.files->create(join_path(folder, name));
    if (!file.ok() && i < kMostNames && error_code(file.status()) == ErrorCode::kAlreadyExists) {
      continue;
    }
    if (!file.ok()) return file.status();
    std::unique_ptr<EventFile> result(new EventFile(name, *std::move(file)));
    proto::Event first;
    first.set_file_version(kFileVersion);
    first.mutable_source_metadata()->set_writer(options.writer);
    result->add(first);
    TRIREME_RETURN_IF_ERROR(result->flush());
    return result;
  }
}

void EventFile::add_scalar(const std::string& tag, int64_t step, double value) {
  proto::Event event;
  add_summary(event, tag, step).set_simple_value(static_cast<float>(value));
  add(event);
}

void EventFile::add_histogram(const std::string& tag, int64_t step,
                              const std::vector<HistogramBucket>& buckets) {
  static_assert(sizeof(HistogramBucket) == 3 * sizeof(double));  // a row of the tensor
  proto::Event event;
  proto::EventTensor& tensor =
      add_tensor(add_summary(event, tag, step), "histograms", proto::EventTensor::DT_DOUBLE);
  tensor.mutable_tensor_shape()->add_dim()->set_size(static_cast<int64_t>(buckets.size()));
  tensor.mutable_tensor_shape()->add_dim()->set_size(3);
  tensor.set_tensor_content(buckets.data(), buckets.size() * sizeof(HistogramBucket));
  add(event);
}

void EventFile::add_text(const std::string& tag, int64_t step, const std::string& text) {
  proto::Event event;
  add_tensor(add_summary(event, tag, step), "text", proto::EventTensor::DT_STRING)
      .add_string_val(text);
  add(event);
}

void EventFile::add(proto::Event& event) {
  event.set_wall_time(wall_seconds());
  const uint64_t length = event.ByteSizeLong();
  const size_t head = unwritten_.size();
  unwritten_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  append_masked_crc(unwritten_, head);
  const size_t data = unwritten_.size();
  event.AppendToString(&unwritten_);
  append_masked_crc(unwritten_, data);
}

absl::Status EventFile::flush() {
  if (unwritten_.empty()) return absl::OkStatus();
  TRIREME_RETURN_IF_ERROR(file_->write(bytes_written_, unwritten_.data(), unwritten_.size()));
  bytes_written_ += unwritten_.size();
  unwritten_.clear();
  return absl::OkStatus();
}

absl::Status rewind_event_files(const std::string& folder, const std::string& writer,
                                const std::map<std::string, uint64_t>& bytes) {
  Files& files = Files::local();
  const auto exists = files.exists(folder);
  if (exists.ok() && !*exists) return absl::OkStatus();
  TRIREME_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    if (!absl::StartsWith(name, kPrefix) || writer_of(path) != writer) continue;
    const auto kept = bytes.find(name);
    TRIREME_RETURN_IF_ERROR(kept == bytes.end() ? files.remove(path) : shorten(path, kept->second));
  }
  return absl::OkStatus();
}

}  // namespace trireme
