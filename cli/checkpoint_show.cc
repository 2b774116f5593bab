#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/checkpoint.h"
#include "cli/command.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace {

using internal::CheckpointEntry;
using internal::Manifest;
using internal::SavedVariable;

// A checkpoint of a folder, or the error if its manifest is damaged.
struct ListedCheckpoint {
  CheckpointEntry entry;
  absl::StatusOr<Manifest> manifest;

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& file : manifest->files) sum += file.bytes;
    return sum;
  }
};

ListedCheckpoint read_listed(const CheckpointEntry& entry) {
  const auto text = Files::local().read_text(join_path(entry.path, internal::kManifestName),
                                             internal::kMostManifestBytes);
  return {entry,
          text.ok() ? internal::parse_manifest(*text) : absl::StatusOr<Manifest>(text.status())};
}

std::string metric_text(const Manifest& manifest) {
  return manifest.metric ? absl::StrFormat("%g", *manifest.metric) : "-";
}

void print_checkpoints(const std::vector<ListedCheckpoint>& listed) {
  if (listed.empty()) {
    absl::PrintF("no checkpoint\n");
    return;
  }
  size_t width = 10;
  for (const auto& [entry, manifest] : listed) width = std::max(width, entry.name.size());
  absl::PrintF("%-*s  %-20s  %9s  %5s  %10s  %s\n", width, "CHECKPOINT", "SAVED AT", "VARIABLES",
               "FILES", "BYTES", "METRIC");
  for (const ListedCheckpoint& checkpoint : listed) {
    const auto& manifest = checkpoint.manifest;
    if (!manifest.ok()) {
      absl::PrintF("%-*s  damaged: %s\n", width, checkpoint.entry.name,
                   to_error(manifest.status()).message());
      continue;
    }
    absl::PrintF("%-*s  %-20s  %9d  %5d  %10s  %s\n", width, checkpoint.entry.name,
                 manifest->saved_at, manifest->variables.size(), manifest->files.size(),
                 format_bytes(checkpoint.bytes()), metric_text(*manifest));
  }
}

void print_checkpoints_json(const std::vector<ListedCheckpoint>& listed,
                            const std::vector<std::string>& unfinished) {
  using nlohmann::ordered_json;
  ordered_json list = ordered_json::array();
  for (const ListedCheckpoint& checkpoint : listed) {
    const auto& manifest = checkpoint.manifest;
    ordered_json entry = {{"name", checkpoint.entry.name},
                          {"path", checkpoint.entry.path},
                          {"step", checkpoint.entry.step}};
    if (manifest.ok()) {
      entry["saved_at"] = manifest->saved_at;
      entry["metric"] = manifest->metric ? ordered_json(*manifest->metric) : ordered_json(nullptr);
      entry["variables"] = manifest->variables.size();
      entry["files"] = manifest->files.size();
      entry["bytes"] = checkpoint.bytes();
    } else {
      entry["error"] = describe(manifest.status());
    }
    list.push_back(std::move(entry));
  }
  std::printf("%s\n",
              ordered_json{{"checkpoints", list}, {"unfinished", unfinished}}.dump(2).c_str());
}

// Returns the folders that unfinished saves have left.
std::vector<std::string> unfinished_saves(const std::string& path) {
  std::vector<std::string> unfinished;
  for (const std::string& name : value_or_throw(Files::local().list(path))) {
    if (internal::checkpoint_step(name) && !value_or_throw(Files::local().exists(join_path(
                                               join_path(path, name), internal::kManifestName)))) {
      unfinished.push_back(name);
    }
  }
  return unfinished;
}

// Returns the optimizer of a variable with its rate and the updates that it has made.
std::string optimizer_text(const SavedVariable& variable) {
  if (variable.rule.empty()) return "-";
  const auto lr = variable.options.find("lr");
  return absl::StrCat(variable.rule,
                      lr == variable.options.end() ? "" : absl::StrFormat(" lr=%g", lr->second),
                      absl::StrFormat(", %.0f updates", updates_of(variable)));
}

void print_variables(const Manifest& manifest) {
  struct Row {
    std::string name, dtype, shape, optimizer;
  };
  std::vector<Row> rows = {{"VARIABLE", "DTYPE", "SHAPE", "OPTIMIZER"}};
  for (const SavedVariable& variable : manifest.variables) {
    rows.push_back({variable.name, dtype_name(variable.dtype), format_shape(variable.sizes),
                    optimizer_text(variable)});
  }
  size_t name = 0, dtype = 0, shape = 0, optimizer = 0;
  for (const Row& row : rows) {
    name = std::max(name, row.name.size());
    dtype = std::max(dtype, row.dtype.size());
    shape = std::max(shape, row.shape.size());
    optimizer = std::max(optimizer, row.optimizer.size());
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const SavedVariable* variable = i == 0 ? nullptr : &manifest.variables[i - 1];
    absl::PrintF("%-*s  %-*s  %-*s  %6s  %10s  %-*s  %s\n", name, rows[i].name, dtype,
                 rows[i].dtype, shape, rows[i].shape,
                 variable ? absl::StrCat(variable->shards.size()) : "SHARDS",
                 variable ? format_bytes(variable->bytes()) : "BYTES", optimizer, rows[i].optimizer,
                 variable == nullptr
                     ? "SLOTS"
                     : (variable->slots.empty() ? "-" : absl::StrJoin(variable->slots, ", ")));
  }
}

void print_rest(const Manifest& manifest) {
  for (const auto& file : manifest.files) {
    absl::PrintF("file %s: %s\n", file.name, format_bytes(file.bytes));
  }
  for (const auto& iterator : manifest.iterators) {
    uint64_t drawn = 0, returned = 0;
    for (const auto& position : iterator.positions) {
      drawn += position.next - position.returned.size();
      returned += position.returned.size();
    }
    absl::PrintF("iterator %s: %d elements used", iterator.name, drawn);
    if (iterator.per_worker) absl::PrintF(" by %d workers", iterator.positions.size());
    if (returned > 0) absl::PrintF(", %d returned", returned);
    absl::PrintF("; %s\n", iterator.dataset);
  }
  for (const auto& [name, text] : manifest.texts) {
    absl::PrintF("text %s: %s\n", name, format_bytes(text.size()));
  }
  for (const auto& [name, calls] : manifest.functions) {
    absl::PrintF("function %s: %d calls\n", name, calls);
  }
}

}  // namespace

int list_checkpoints(const std::string& path, bool json) {
  std::vector<CheckpointEntry> entries;
  std::vector<std::string> unfinished;
  if (value_or_throw(Files::local().exists(join_path(path, internal::kManifestName)))) {
    const std::string name = std::filesystem::path(path).lexically_normal().filename();
    entries.push_back({path, name, internal::checkpoint_step(name).value_or(0)});
  } else {
    unfinished = unfinished_saves(path);
    entries = value_or_throw(internal::CheckpointDirectory(Files::local(), path).list());
  }
  std::vector<ListedCheckpoint> listed;
  int code = 0;
  for (const CheckpointEntry& entry : entries) {
    listed.push_back(read_listed(entry));
    if (!listed.back().manifest.ok()) code = kRunTimeError;
  }
  if (json) {
    print_checkpoints_json(listed, unfinished);
    return code;
  }
  print_checkpoints(listed);
  if (!unfinished.empty()) {
    absl::PrintF("left by unfinished saves: %s\n", absl::StrJoin(unfinished, ", "));
  }
  return code;
}

int show_checkpoint(const std::string& path, bool json) {
  const auto reader = open_checkpoint(path);
  const Manifest& manifest = reader->manifest();
  if (json) {
    std::printf(
        "%s\n",
        nlohmann::ordered_json::parse(internal::to_text(manifest))["manifest"].dump(2).c_str());
    return 0;
  }
  absl::PrintF("%s: step %d, saved at %s, metric %s, seed %d, id %s\n", path, manifest.step,
               manifest.saved_at, metric_text(manifest), manifest.seed, manifest.id);
  print_variables(manifest);
  print_rest(manifest);
  return 0;
}

}  // namespace trireme
