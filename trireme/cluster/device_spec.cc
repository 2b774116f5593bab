#include "trireme/cluster/device_spec.h"

#include <ostream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trireme/cluster/text.h"

namespace trireme {
namespace {

using internal::refuse;

constexpr int kMaxDevices = 1024;  // maximum number of devices of one type in one task
constexpr const char* kTypes = "the types are cpu and gpu";

std::string type_name(DeviceType type) {
  return type == DeviceType::kCpu ? "cpu" : "gpu";
}

// Returns nullopt for an unknown type.
std::optional<DeviceType> find_type(const std::string& name, const std::string& place) {
  const std::string lower = internal::to_lower(name);
  if (lower == "cpu") return DeviceType::kCpu;
  if (lower == "gpu") return DeviceType::kGpu;
  if (lower == "tpu") {
    refuse(absl::StrCat(place, ": tpu is not supported; ", kTypes));
  }
  return std::nullopt;
}

// Reads the name of a device from left to right, one part between slashes at a time.
class Reader {
 public:
  explicit Reader(const std::string& text) : place_(absl::StrCat("device '", text, "'")) {}

  void read(const std::string& part) {
    const size_t colon = part.find(':');
    const std::string key = internal::to_lower(part.substr(0, colon));
    const std::optional<std::string> value =
        colon == part.npos ? std::nullopt : std::optional(part.substr(colon + 1));
    if (key == "job") {
      check_first("job");
      read_job(value.value_or(""));
    } else if (key == "replica") {
      check_first("replica");
      spec_.replica = number("replica", value.value_or(""));
    } else if (key == "task") {
      check_first("task");
      spec_.task = number("task", value.value_or(""));
    } else if (key == "device") {
      read_device(value.value_or(""));
    } else {
      read_type(key, value);
    }
  }

  const DeviceSpec& spec() const { return spec_; }

 private:
  // Throws Error if the field was given before.
  void check_first(const std::string& field) {
    if (!seen_.insert(field).second) refuse(absl::StrCat(place_, ": two parts give the ", field));
  }

  std::optional<int> number(const std::string& field, const std::string& value) const {
    if (value == "*") return std::nullopt;
    const std::optional<int> parsed = internal::parse_int(value);
    if (!parsed) refuse(absl::StrCat(place_, ": ", field, " '", value, "' is not a number"));
    return parsed;
  }

  void read_job(const std::string& name) {
    if (name == "*") return;
    if (!internal::is_name(name))
      refuse(absl::StrCat(place_, ": job '", name, "' is not a valid name"));
    spec_.job = name;
  }

  // Reads the value of "/device:": "GPU:0", "GPU", "*" or "*:0".
  void read_device(const std::string& text) {
    const size_t colon = text.find(':');
    const std::string type = text.substr(0, colon);
    check_first("device");
    if (type != "*") {
      spec_.type = find_type(type, place_);
      if (!spec_.type) {
        refuse(absl::StrCat(place_, ": there is no device type '", type, "'; ", kTypes));
      }
    }
    if (colon != text.npos) spec_.index = number("device index", text.substr(colon + 1));
  }

  // Reads the short form of a device, "/gpu:1".
  void read_type(const std::string& key, const std::optional<std::string>& index) {
    spec_.type = find_type(key, place_);
    if (!spec_.type) {
      refuse(absl::StrCat(place_, ": there is no field or device type '", key,
                          "'; the fields are job, replica, task and device, ", kTypes));
    }
    check_first("device");
    if (index) spec_.index = number("device index", *index);
  }

  const std::string place_;
  DeviceSpec spec_;
  std::set<std::string> seen_;
};

}  // namespace

DeviceList DeviceList::parse(const std::string& text) {
  const std::string place = absl::StrCat("devices '", text, "'");
  DeviceList list;
  std::set<DeviceType> seen;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t colon = entry.find(':');
    const std::string name = entry.substr(0, colon);
    const std::optional<DeviceType> type = find_type(name, place);
    if (!type) refuse(absl::StrCat(place, ": there is no device type '", name, "'; ", kTypes));
    if (!seen.insert(*type).second) {
      refuse(absl::StrCat(place, ": ", type_name(*type), " is given twice"));
    }
    const int least = *type == DeviceType::kCpu ? 1 : 0;
    const std::optional<int> count =
        internal::parse_int(colon == entry.npos ? "" : entry.substr(colon + 1));
    if (!count || *count < least || *count > kMaxDevices) {
      refuse(absl::StrCat(place, ": '", entry, "' does not give a count from ", least, " to ",
                          kMaxDevices, "; write it as cpu:2,gpu:1"));
    }
    (*type == DeviceType::kCpu ? list.cpus : list.gpus) = *count;
  }
  return list;
}

std::string DeviceList::to_string() const {
  std::string text = absl::StrCat("cpu:", cpus);
  if (gpus > 0) absl::StrAppend(&text, ",gpu:", gpus);
  return text;
}

bool DeviceList::has(DeviceType type, int index) const {
  return index >= 0 && index < (type == DeviceType::kCpu ? cpus : gpus);
}

std::vector<std::string> DeviceList::names(const TaskId& task) const {
  std::vector<std::string> names;
  for (int i = 0; i < cpus; ++i) names.push_back(absl::StrCat(task.to_string(), "/cpu:", i));
  for (int i = 0; i < gpus; ++i) names.push_back(absl::StrCat(task.to_string(), "/gpu:", i));
  return names;
}

DeviceSpec DeviceSpec::parse(const std::string& text) {
  if (text.empty()) return {};
  Reader reader(text);
  const std::string parts(absl::StripPrefix(text, "/"));
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(parts, '/'))) {
    if (part.empty()) refuse(absl::StrCat("device '", text, "' has nothing after a '/'"));
    reader.read(part);
  }
  return reader.spec();
}

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) absl::StrAppend(&text, "/job:", *job);
  if (replica.value_or(0) != 0) absl::StrAppend(&text, "/replica:", *replica);
  if (task) absl::StrAppend(&text, "/task:", *task);
  if (type) absl::StrAppend(&text, "/", type_name(*type));
  if (index) absl::StrAppend(&text, type ? ":" : "/device:*:", *index);
  return text;
}

std::string DeviceSpec::to_full_string() const {
  std::string text;
  if (job) absl::StrAppend(&text, "/job:", *job);
  if (replica || (job && task)) absl::StrAppend(&text, "/replica:", replica.value_or(0));
  if (task) absl::StrAppend(&text, "/task:", *task);
  if (type) absl::StrAppend(&text, "/device:", absl::AsciiStrToUpper(type_name(*type)));
  if (index) absl::StrAppend(&text, type ? ":" : "/device:*:", *index);
  return text;
}

std::ostream& operator<<(std::ostream& out, const DeviceSpec& spec) {
  return out << spec.to_string();
}

DeviceSpec merge(const DeviceSpec& outer, const DeviceSpec& inner) {
  return {
      .job = inner.job ? inner.job : outer.job,
      .replica = inner.replica ? inner.replica : outer.replica,
      .task = inner.task ? inner.task : outer.task,
      .type = inner.type ? inner.type : outer.type,
      .index = inner.index ? inner.index : outer.index,
  };
}

TaskId task_of(const DeviceSpec& spec, const TaskId& master) {
  if (!spec.job && !spec.task) return master;
  return {spec.job.value_or(master.job), spec.task.value_or(0)};
}

DeviceSpec with_defaults(const DeviceSpec& spec, const TaskId& master, const DeviceList& devices) {
  const TaskId task = task_of(spec, master);
  return {
      .job = task.job,
      .replica = spec.replica.value_or(0),
      .task = task.index,
      .type = spec.type.value_or(devices.default_type()),
      .index = spec.index.value_or(0),
  };
}

DeviceSpec nearest(const DeviceSpec& spec, const DeviceList& devices) {
  DeviceSpec found = spec;
  const DeviceType type = spec.type.value_or(devices.default_type());
  if (!devices.has(type, spec.index.value_or(0))) {
    found.type = devices.has(type, 0) ? type : DeviceType::kCpu;
    found.index = 0;
  }
  return found;
}

std::string short_device_names(const std::vector<std::string>& names) {
  return absl::StrJoin(names, ",", [](std::string* out, const std::string& name) {
    out->append(name.substr(name.rfind('/') + 1));
  });
}

}  // namespace trireme
