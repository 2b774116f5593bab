// A state dict is read and written where the tensors are: in the program, on the tasks of a
// session, or on parameter servers. There, one call per server moves many tensors. Of workers that
// train together, each has the tensors. Worker 0 writes the file, and all of them read it. They
// assign nothing before they know that each of them has read the same values.
#include "trireme/train/state_dict.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/checkpoint/tensor_file.h"
#include "trireme/function/variable.h"
#include "trireme/ps/packing.h"
#include "trireme/ps/parameter_server_backend.h"
#include "trireme/train/restore_result.h"
#include "trireme/train/state_dict_files.h"
#include "trireme/train/worker_agreement.h"

namespace trireme {
namespace {

using internal::ParameterServerBackend;
using internal::StateDictFiles;
using internal::TensorShape;
using internal::VariableRecord;

// Bytes that are read from files before they are sent to the servers.
constexpr size_t kBytesPerAssignment = size_t{256} << 20;

// A parameter or buffer of a module.
struct StateTensor {
  std::string name;
  at::Tensor tensor;
  std::shared_ptr<VariableRecord> variable;  // Null if it is not a variable.

  // Returns the servers that hold it; null if it lives elsewhere.
  ParameterServerBackend* servers() const {
    return variable == nullptr ? nullptr
                               : dynamic_cast<ParameterServerBackend*>(variable->backend.get());
  }
};

std::vector<StateTensor> state_tensors(const torch::nn::Module& module) {
  std::vector<StateTensor> tensors;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      tensors.push_back({item.key(), item.value(), internal::find_variable(item.value())});
    }
  }
  return tensors;
}

// Returns an agreement of the workers that train the tensors together.
internal::WorkerAgreement agreement_for(const std::vector<StateTensor>& tensors) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.variable == nullptr || tensor.variable->backend == nullptr) continue;
    if (auto* const workers = tensor.variable->backend->workers()) {
      return internal::WorkerAgreement(workers);
    }
  }
  return internal::WorkerAgreement(nullptr);
}

void check_outside_capture(const char* call) {
  if (!internal::is_capturing()) return;
  throw Error(ErrorCode::kFailedPrecondition,
              absl::StrCat(call,
                           "() runs once, during the capture, and not in replays; call it outside "
                           "of the function"),
              {"", absl::StrCat("function '", internal::captured_function(), "'")});
}

// Returns the values of the tensors, from wherever they are.
std::vector<at::Tensor> values_of(const std::vector<StateTensor>& tensors) {
  std::vector<at::Tensor> values(tensors.size());
  std::map<ParameterServerBackend*, std::vector<size_t>> on_servers;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (ParameterServerBackend* servers = tensors[i].servers()) {
      on_servers[servers].push_back(i);
    } else if (tensors[i].variable != nullptr) {
      values[i] = internal::Access<Variable>::make(tensors[i].variable).read();
    } else {
      values[i] = tensors[i].tensor;
    }
  }
  for (const auto& [servers, indices] : on_servers) {
    internal::VariableRecords records;
    for (const size_t i : indices) records.push_back(tensors[i].variable);
    std::vector<at::Tensor> read = servers->read_all(records);
    for (size_t k = 0; k < indices.size(); ++k) values[indices[k]] = std::move(read[k]);
  }
  for (at::Tensor& value : values) value = value.detach().cpu().contiguous();
  return values;
}

// Assigns values to the tensors of a module. Those on servers are sent in groups.
class Assignment {
 public:
  void add(const StateTensor& to, at::Tensor value) {
    if (ParameterServerBackend* servers = to.servers()) {
      Group& group = groups_[servers];
      group.bytes += value.nbytes();
      group.records.push_back(to.variable);
      group.values.push_back(std::move(value));
      if (group.bytes >= kBytesPerAssignment) send(*servers, group);
    } else if (to.variable != nullptr) {
      internal::Access<Variable>::make(to.variable).assign(value);
    } else {
      at::Tensor(to.tensor).copy_(value);
    }
  }

  // Sends the groups that are left.
  void finish() {
    for (auto& [servers, group] : groups_) send(*servers, group);
  }

 private:
  struct Group {
    internal::VariableRecords records;
    std::vector<at::Tensor> values;
    size_t bytes = 0;
  };

  static void send(ParameterServerBackend& servers, Group& group) {
    if (!group.records.empty()) servers.assign_all(group.records, group.values);
    group = {};
  }

  std::map<ParameterServerBackend*, Group> groups_;
};

std::string quoted_list(const std::vector<std::string>& names) {
  return absl::StrCat("'", absl::StrJoin(names, "', '"), "'");
}

// The tensors of a module and of a file, compared.
struct StateComparison {
  std::vector<std::pair<StateTensor, const StateDictFiles::Entry*>> equal;
  std::vector<std::string> only_in_module, only_in_file, different;
  std::vector<std::string> not_set;  // Names in the module.

  // Returns the differences as a sentence; empty if there is none.
  std::string text() const {
    std::vector<std::string> parts;
    if (!only_in_module.empty()) {
      parts.push_back(absl::StrCat("only in the module: ", quoted_list(only_in_module)));
    }
    if (!only_in_file.empty()) {
      parts.push_back(absl::StrCat("only in the file: ", quoted_list(only_in_file)));
    }
    parts.insert(parts.end(), different.begin(), different.end());
    return absl::StrJoin(parts, "; ");
  }
};

StateComparison compare_state(const std::vector<StateTensor>& tensors, const StateDictFiles& files,
                              const RestoreOptions& options) {
  StateComparison result;
  std::set<std::string> names;
  std::set<const void*> set;  // Tensors that the file has a value for.
  std::vector<const StateTensor*> missing;
  for (const StateTensor& tensor : tensors) {
    names.insert(tensor.name);
    if (!internal::is_selected(options, tensor.name)) {
      result.not_set.push_back(tensor.name);
      continue;
    }
    const auto found = files.entries().find(tensor.name);
    if (found == files.entries().end()) {
      missing.push_back(&tensor);
      continue;
    }
    const auto& saved = found->second.tensor;
    const std::string here = to_string(TensorShape::of(tensor.tensor));
    const std::string there = to_string(TensorShape{saved.dtype, saved.sizes});
    if (here == there) {
      result.equal.emplace_back(tensor, &found->second);
      set.insert(tensor.tensor.unsafeGetTensorImpl());
    } else {
      result.not_set.push_back(tensor.name);
      result.different.push_back(absl::StrCat("'", tensor.name, "' is ", here,
                                              " in the module and ", there, " in the file"));
    }
  }
  for (const StateTensor* tensor : missing) {
    // Programs that write tied weights leave out all names but one.
    if (set.count(tensor->tensor.unsafeGetTensorImpl()) > 0) continue;
    result.only_in_module.push_back(tensor->name);
    result.not_set.push_back(tensor->name);
  }
  for (const auto& [name, entry] : files.entries()) {
    if (names.count(name) == 0 && internal::is_selected(options, name)) {
      result.only_in_file.push_back(name);
    }
  }
  return result;
}

void check_comparison(const StateComparison& comparison, const std::string& path,
                      const RestoreOptions& options) {
  if (comparison.equal.empty()) {
    const std::string text = comparison.text();
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("no tensor of the module is in the file",
                             options.patterns.empty() ? "" : " and selected by the patterns ",
                             options.patterns.empty() ? "" : quoted_list(options.patterns),
                             text.empty() ? "" : "; ", text),
                {"", absl::StrCat("state dict '", path, "'")});
  }
  if (options.partial) return;
  const std::string text = comparison.text();
  if (text.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat("the module and the file differ; ", text,
                           ". Nothing was loaded; RestoreOptions::partial loads the tensors that "
                           "agree"),
              {"", absl::StrCat("state dict '", path, "'")});
}

void write_state(const std::vector<StateTensor>& tensors, const std::string& path) {
  const std::vector<at::Tensor> values = values_of(tensors);
  std::vector<internal::TensorToSave> saved;
  for (size_t i = 0; i < tensors.size(); ++i) {
    saved.push_back({.name = tensors[i].name,
                     .dtype = values[i].scalar_type(),
                     .sizes = values[i].sizes().vec(),
                     .data = values[i].const_data_ptr(),
                     .bytes = values[i].nbytes()});
  }
  Files& files = Files::local();
  const std::string unfinished = path + ".tmp";
  if (value_or_throw(files.exists(unfinished))) throw_if_error(files.remove(unfinished));
  value_or_throw(internal::write_tensor_file(files, unfinished, std::move(saved)));
  throw_if_error(files.rename(unfinished, path));
  const std::string folder = std::filesystem::path(path).parent_path();
  throw_if_error(files.sync_directory(folder.empty() ? "." : folder));
}

// Reads the values of the tensors from a file and calls `use` with each. Returns the names that are
// not set.
std::vector<std::string> read_state(
    const std::vector<StateTensor>& tensors, const std::string& path, const RestoreOptions& options,
    const std::function<void(const StateTensor& to, at::Tensor value)>& use) {
  const auto files = value_or_throw(StateDictFiles::open(Files::local(), path));
  StateComparison comparison = compare_state(tensors, files, options);
  check_comparison(comparison, path, options);
  for (const auto& [tensor, entry] : comparison.equal) {
    use(tensor, value_or_throw(files.read(*entry)));
  }
  return std::move(comparison.not_set);
}

// Loads without other workers. Assigns while it reads, since the values may not fit into memory.
std::vector<std::string> load_alone(const std::vector<StateTensor>& tensors,
                                    const std::string& path, const RestoreOptions& options) {
  Assignment assignment;
  auto not_set = read_state(tensors, path, options, [&](const StateTensor& to, at::Tensor value) {
    assignment.add(to, std::move(value));
  });
  assignment.finish();
  return not_set;
}

// Loads on all workers of a group, or on none of them.
std::vector<std::string> load_together(const internal::WorkerAgreement& agreement,
                                       const std::vector<StateTensor>& tensors,
                                       const std::string& path, const RestoreOptions& options) {
  std::vector<std::pair<StateTensor, at::Tensor>> values;
  std::vector<std::string> not_set;
  const auto read = try_call([&] {
    uint32_t crc = 0;
    not_set = read_state(tensors, path, options, [&](const StateTensor& to, at::Tensor value) {
      crc = crc32c(to.name.c_str(), to.name.size() + 1, crc);
      crc = crc32c(value.const_data_ptr(), value.nbytes(), crc);
      values.emplace_back(to, std::move(value));
    });
    return absl::StrCat(crc);
  });
  agreement.check(read.status(), "load_state_dict()");
  throw_if_error(internal::check_same_input(
      agreement.all(read, "checksum of a state dict"),
      {.verb = "load",
       .noun = "state dict",
       .path = path,
       .remedy = "Copy the same file to every machine, or load from a shared folder"}));
  const absl::Status assigned = try_call([&] {
    Assignment assignment;
    for (auto& [to, value] : values) assignment.add(to, std::move(value));
    assignment.finish();
  });
  agreement.check(assigned, "end of load_state_dict()");
  return not_set;
}

}  // namespace

void save_state_dict(const torch::nn::Module& module, const std::string& path) {
  check_outside_capture("save_state_dict");
  const internal::SuspendDeviceCheck no_device_check;
  const at::NoGradGuard no_gradients;
  const std::vector<StateTensor> tensors = state_tensors(module);
  const auto write_as_chief = [&]() -> std::string {
    write_state(tensors, path);
    return "";
  };
  agreement_for(tensors).decide(write_as_chief, "save_state_dict()");
}

std::vector<std::string> load_state_dict(torch::nn::Module& module, const std::string& path,
                                         const RestoreOptions& options) {
  check_outside_capture("load_state_dict");
  const internal::SuspendDeviceCheck no_device_check;
  const at::NoGradGuard no_gradients;
  const std::vector<StateTensor> tensors = state_tensors(module);
  const internal::WorkerAgreement agreement = agreement_for(tensors);
  return agreement.alone() ? load_alone(tensors, path, options)
                           : load_together(agreement, tensors, path, options);
}

}  // namespace trireme
