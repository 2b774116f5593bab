#include "trireme/train/state_dict_files.h"

#include <ATen/ops/empty.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/strict_json.h"
#include "trireme/checkpoint/tensor_file.h"

namespace trireme::internal {
namespace {

constexpr char kWholeName[] = "model.safetensors";
constexpr char kIndexEnding[] = ".safetensors.index.json";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr uint64_t kMostIndexBytes = uint64_t{64} << 20;

absl::Status damaged_index(const std::string& path, const std::string& why) {
  return make_status(ErrorCode::kDataLoss,
                     absl::StrCat("the index ", why, "; write or copy the files again"),
                     {"", absl::StrCat("file '", path, "'")});
}

}  // namespace

absl::StatusOr<StateDictFiles> StateDictFiles::open(Files& files, const std::string& path) {
  StateDictFiles opened;
  std::error_code unused;
  std::string file = path;
  if (std::filesystem::is_directory(path, unused)) {
    TRIREME_ASSIGN_OR_RETURN(const bool has_index, files.exists(join_path(path, kIndexName)));
    file = join_path(path, has_index ? kIndexName : kWholeName);
  }
  TRIREME_ASSIGN_OR_RETURN(const bool exists, files.exists(file));
  if (!exists) {
    return make_status(ErrorCode::kNotFound,
                       absl::StrCat(file == path ? "the file does not exist"
                                                 : "the folder has neither a model.safetensors nor "
                                                   "a model.safetensors.index.json",
                                    "; give a safetensors file, an index or the folder of one"),
                       {"", absl::StrCat("'", path, "'")});
  }
  TRIREME_RETURN_IF_ERROR(absl::EndsWith(file, kIndexEnding) ? opened.add_index(files, file)
                                                             : opened.add_file(files, file));
  return opened;
}

absl::Status StateDictFiles::add_file(Files& files, const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, files.open(path));
  TRIREME_ASSIGN_OR_RETURN(SafetensorsHeader header, read_safetensors_header(*file, path));
  for (SafetensorsEntry& tensor : header.tensors) {
    const std::string name = tensor.name;
    if (!entries_.try_emplace(name, Entry{std::move(tensor), files_.size()}).second) {
      return make_status(ErrorCode::kDataLoss,
                         absl::StrCat("tensor '", name, "' is in another file of the index too"),
                         {"", absl::StrCat("file '", path, "'")});
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status StateDictFiles::add_index(Files& files, const std::string& path) {
  TRIREME_ASSIGN_OR_RETURN(const std::string text, files.read_text(path, kMostIndexBytes));
  const auto index = parse_strict_json(text, /*depth=*/4);
  if (!index.ok()) return damaged_index(path, std::string(index.status().message()));
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (map == index->end() || !map->is_object()) {
    return damaged_index(path, "has no object 'weight_map'");
  }
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      return damaged_index(path, absl::StrCat("does not give tensor '", tensor,
                                              "' the name of a file in the same folder"));
    }
    names.insert(file.get<std::string>());
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  std::map<std::string, size_t> numbers;
  for (const std::string& name : names) {
    numbers[name] = files_.size();
    TRIREME_RETURN_IF_ERROR(add_file(files, folder.empty() ? name : join_path(folder, name)));
  }
  for (const auto& [tensor, file] : map->items()) {
    const auto found = entries_.find(tensor);
    if (found == entries_.end() || found->second.file != numbers[file.get<std::string>()]) {
      return damaged_index(
          path, absl::StrCat("says that tensor '", tensor, "' is in '", file.get<std::string>(),
                             "', which does not have it"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> StateDictFiles::read(const Entry& entry) const {
  at::Tensor tensor = at::empty(entry.tensor.sizes, entry.tensor.dtype);
  const uint64_t bytes = entry.tensor.end - entry.tensor.begin;
  if (bytes > 0) {
    TRIREME_RETURN_IF_ERROR(
        files_[entry.file]->read(entry.tensor.begin, tensor.mutable_data_ptr(), bytes));
  }
  return tensor;
}

}  // namespace trireme::internal
