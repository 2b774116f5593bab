// Writes whole tensors for the Python world, one tensor at a time. The names of the files and the
// index are those of Hugging Face: model.safetensors, or model-00001-of-00003.safetensors and so on
// with model.safetensors.index.json, which says in which file each tensor is.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/checkpoint.h"
#include "cli/command.h"
#include "cli/progress_bar.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/tensor_file.h"

namespace trireme {
namespace {

using internal::CheckpointReader;
using internal::SavedVariable;
using internal::TensorFileLayout;
using internal::TensorToSave;

// A tensor to write: the contents of a variable, one of its slots, or its number of updates.
struct ConvertedTensor {
  static constexpr int kContents = -1, kUpdates = -2;

  const SavedVariable* variable;
  int slot = kContents;
  double updates = 0;  // Value of kUpdates.

  std::string name() const {
    if (slot == kContents) return variable->name;
    return absl::StrCat(variable->name, "#", slot == kUpdates ? "step" : variable->slots[slot]);
  }
  uint64_t bytes() const { return slot == kUpdates ? sizeof(double) : variable->bytes(); }
  TensorToSave to_save() const {
    return {.name = name(),
            .dtype = slot == kUpdates ? c10::ScalarType::Double : variable->dtype,
            .sizes = slot == kUpdates ? std::vector<int64_t>() : variable->sizes,
            .bytes = bytes()};
  }
};

using ConvertedTensors = std::vector<ConvertedTensor>;

// Writes tensors into one or several files of a folder, and removes them again if that fails.
class TensorFiles {
 public:
  TensorFiles(const CheckpointReader& reader, const ConvertFlags& flags, uint64_t total)
      : reader_(reader), flags_(flags), total_(total) {}

  ~TensorFiles() {
    if (kept_) return;
    for (const std::string& path : written_) Files::local().remove(path).IgnoreError();
  }

  // Writes files whose names begin with `prefix`. Returns a sentence about them.
  std::string write(const std::string& prefix, const ConvertedTensors& tensors) {
    const std::vector<ConvertedTensors> shards = split(tensors);
    std::string name = absl::StrCat(prefix, ".safetensors");
    nlohmann::json weight_map = nlohmann::json::object();
    uint64_t bytes = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (shards.size() > 1) {
        name = absl::StrFormat("%s-%05d-of-%05d.safetensors", prefix, i + 1, shards.size());
      }
      write_file(name, shards[i]);
      for (const ConvertedTensor& tensor : shards[i]) {
        weight_map[tensor.name()] = name;
        bytes += tensor.bytes();
      }
    }
    if (shards.size() > 1) {
      name = absl::StrCat(prefix, ".safetensors.index.json");
      const nlohmann::json index = {{"metadata", {{"total_size", bytes}}},
                                    {"weight_map", weight_map}};
      written_.push_back(join_path(flags_.to, name));
      throw_if_error(Files::local().write_text(written_.back(), index.dump(2) + "\n"));
    }
    return absl::StrCat(join_path(flags_.to, name), ": ", tensors.size(), " tensors, ",
                        format_bytes(bytes), " in ", shards.size(),
                        shards.size() == 1 ? " file" : " files");
  }

  void keep() {
    throw_if_error(Files::local().sync_directory(flags_.to));
    kept_ = true;
  }

 private:
  // Fills one file after the other. A tensor that is too large for any has one of its own.
  std::vector<ConvertedTensors> split(const ConvertedTensors& tensors) const {
    std::vector<ConvertedTensors> shards;
    ConvertedTensors current;
    uint64_t bytes = 0;
    for (const ConvertedTensor& tensor : tensors) {
      if (tensor.bytes() > flags_.max_shard_size) {
        shards.push_back({tensor});
        continue;
      }
      if (bytes + tensor.bytes() > flags_.max_shard_size) {
        shards.push_back(std::move(current));
        current.clear();
        bytes = 0;
      }
      current.push_back(tensor);
      bytes += tensor.bytes();
    }
    if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
    return shards;
  }

  void write_file(const std::string& name, const ConvertedTensors& tensors) {
    const std::string path = join_path(flags_.to, name);
    std::vector<TensorToSave> to_save;
    for (const ConvertedTensor& tensor : tensors) to_save.push_back(tensor.to_save());
    throw_if_error(internal::check_tensors(to_save));
    const TensorFileLayout layout(std::move(to_save));
    const auto file = value_or_throw(Files::local().create(path));
    written_.push_back(path);
    throw_if_error(file->write(0, layout.header().data(), layout.header().size()));
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      write_tensor(*file, layout.offset(i), tensors[layout.given(i)]);
      bar_.update(done_ += layout.tensors()[i].bytes, total_);
    }
    throw_if_error(file->finish(layout.bytes()));
  }

  void write_tensor(OutputFile& file, uint64_t offset, const ConvertedTensor& tensor) const {
    if (tensor.bytes() == 0) return;
    if (tensor.slot == ConvertedTensor::kUpdates) {
      throw_if_error(file.write(offset, &tensor.updates, sizeof(tensor.updates)));
      return;
    }
    const at::Tensor value = value_or_throw(tensor.slot == ConvertedTensor::kContents
                                                ? reader_.read(*tensor.variable)
                                                : reader_.read_slot(*tensor.variable, tensor.slot));
    throw_if_error(file.write(offset, value.const_data_ptr(), tensor.bytes()));
  }

  const CheckpointReader& reader_;
  const ConvertFlags& flags_;
  const uint64_t total_;
  uint64_t done_ = 0;
  bool kept_ = false;
  std::vector<std::string> written_;  // Paths.
  ProgressBar bar_{"convert", stderr};
};

ConvertedTensors optimizer_tensors(const std::vector<SavedVariable>& variables) {
  ConvertedTensors tensors;
  for (const SavedVariable& variable : variables) {
    if (variable.rule.empty()) continue;
    for (size_t slot = 0; slot < variable.slots.size(); ++slot) {
      tensors.push_back({&variable, static_cast<int>(slot)});
    }
    tensors.push_back({&variable, ConvertedTensor::kUpdates, updates_of(variable)});
  }
  return tensors;
}

uint64_t bytes_of_all(const ConvertedTensors& tensors) {
  uint64_t bytes = 0;
  for (const ConvertedTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

// Throws Error if files of an earlier conversion are in the folder: the index of one and the files
// of another would be taken for one model.
void check_free(const std::string& folder) {
  if (!value_or_throw(Files::local().exists(folder))) return;
  for (const std::string& name : value_or_throw(Files::local().list(folder))) {
    if (name.find(".safetensors") == std::string::npos) continue;
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("'", folder, "' has a file '", name,
                             "' already; remove it or give another folder"));
  }
}

}  // namespace

int convert_checkpoint(const ConvertFlags& flags) {
  if (flags.max_shard_size == 0) {
    throw Error(ErrorCode::kInvalidArgument, "--max-shard-size=0 is not a valid size; give 5GB");
  }
  check_free(flags.to);
  const auto reader = open_checkpoint(flags.from);
  ConvertedTensors model;
  for (const SavedVariable& variable : reader->manifest().variables) model.push_back({&variable});
  ConvertedTensors optimizer;
  if (flags.optimizer) optimizer = optimizer_tensors(reader->manifest().variables);
  throw_if_error(Files::local().make_directories(flags.to));
  std::vector<std::string> lines;
  {
    TensorFiles files(*reader, flags, bytes_of_all(model) + bytes_of_all(optimizer));
    lines.push_back(files.write("model", model));
    if (flags.optimizer) lines.push_back(files.write("optimizer", optimizer));
    files.keep();
  }
  for (const std::string& line : lines) absl::PrintF("%s\n", line);
  return 0;
}

}  // namespace trireme
