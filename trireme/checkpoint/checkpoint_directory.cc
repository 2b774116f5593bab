#include "trireme/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr size_t kStepDigits = 10;
constexpr char kUnfinishedManifest[] = "manifest.json.tmp";

// Returns true for names that a save gives to its files. Other files are not ours to remove.
bool is_file_of_save(const std::string& name) {
  return name == kManifestName || name == kUnfinishedManifest || absl::StartsWith(name, "probe") ||
         absl::EndsWith(name, ".safetensors");
}

absl::Status check_readable(const std::string& path, const std::string& manifest) {
  if (manifest.size() > kMostManifestBytes) {
    return make_status(ErrorCode::kResourceExhausted,
                       absl::StrCat("cannot commit the checkpoint '", path, "': its manifest has ",
                                    manifest.size(), " bytes, and at most ", kMostManifestBytes,
                                    " are read again; use fewer variables or shards"));
  }
  const absl::Status status = parse_manifest(manifest).status();
  if (status.ok()) return status;
  return make_status(ErrorCode::kInternal,
                     absl::StrCat("cannot commit the checkpoint '", path, "': ", status.message()));
}

// Checks that the files are still there as they were written. Somebody may have removed them.
absl::Status check_files(Files& files, const std::string& folder, const Manifest& manifest) {
  for (const SavedFile& file : manifest.files) {
    const std::string path = join_path(folder, file.name);
    const absl::StatusOr<uint64_t> bytes = files.size(path);
    if (!bytes.ok() && error_code(bytes.status()) != ErrorCode::kNotFound) return bytes.status();
    if (bytes.ok() && *bytes == file.bytes) continue;
    return make_status(
        ErrorCode::kDataLoss,
        absl::StrCat("cannot commit the checkpoint: file '", path, "' ",
                     bytes.ok() ? absl::StrCat("has ", *bytes, " bytes") : "is gone", ", but ",
                     file.bytes,
                     " bytes were written; look for another program that uses this "
                     "folder, or for a file system that is not shared, and save again"));
  }
  return absl::OkStatus();
}

absl::Status ignore_not_found(absl::Status status) {
  return error_code(status) == ErrorCode::kNotFound ? absl::OkStatus() : status;
}

}  // namespace

std::string checkpoint_name(uint64_t step) {
  return absl::StrFormat("step-%0*d", static_cast<int>(kStepDigits), step);
}

std::optional<uint64_t> checkpoint_step(std::string_view name) {
  uint64_t step = 0;
  const std::string digits(name.substr(std::min(name.size(), kStepPrefix.size())));
  if (!absl::SimpleAtoi(digits, &step) || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

CheckpointDirectory::CheckpointDirectory(Files& files, std::string path)
    : files_(files), path_(std::move(path)) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
}

absl::StatusOr<std::vector<CheckpointEntry>> CheckpointDirectory::list() const {
  absl::StatusOr<std::vector<std::string>> names = files_.list(path_);
  if (!names.ok() && error_code(names.status()) == ErrorCode::kNotFound) {
    return std::vector<CheckpointEntry>();
  }
  if (!names.ok()) return names.status();
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : *names) {
    const std::optional<uint64_t> step = checkpoint_step(name);
    if (!step) continue;
    const std::string folder = join_path(path_, name);
    TRIREME_ASSIGN_OR_RETURN(const bool committed, files_.exists(join_path(folder, kManifestName)));
    if (committed) entries.push_back({folder, name, *step});
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step > b.step; });
  return entries;
}

absl::StatusOr<std::string> CheckpointDirectory::begin(uint64_t step) {
  TRIREME_RETURN_IF_ERROR(files_.make_directories(path_));
  const std::string folder = join_path(path_, checkpoint_name(step));
  TRIREME_ASSIGN_OR_RETURN(const bool committed, files_.exists(join_path(folder, kManifestName)));
  if (committed) {
    return make_status(ErrorCode::kAlreadyExists,
                       absl::StrCat("there is already a checkpoint of step ", step, " in '", path_,
                                    "'; remove it, or save into another folder"));
  }
  // If a process was killed at the end of commit(), its checkpoint is not durable yet. It must be
  // before older ones are removed.
  TRIREME_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, list());
  for (const CheckpointEntry& entry : entries) {
    TRIREME_RETURN_IF_ERROR(ignore_not_found(files_.sync_directory(entry.path)));
  }
  TRIREME_ASSIGN_OR_RETURN(const bool leftover, files_.exists(folder));
  TRIREME_RETURN_IF_ERROR(leftover ? remove_files(folder) : files_.make_directory(folder));
  TRIREME_RETURN_IF_ERROR(files_.sync_directory(path_));
  return folder;
}

absl::Status CheckpointDirectory::commit(const std::string& path, const Manifest& manifest) {
  const std::string text = to_text(manifest);
  // A checkpoint that could not be read again must not replace the ones before it.
  TRIREME_RETURN_IF_ERROR(check_readable(path, text));
  TRIREME_RETURN_IF_ERROR(check_files(files_, path, manifest));
  const std::string unfinished = join_path(path, kUnfinishedManifest);
  TRIREME_RETURN_IF_ERROR(ignore_not_found(files_.remove(unfinished)));
  TRIREME_RETURN_IF_ERROR(files_.write_text(unfinished, text));
  // The names of the other files must be durable before the name of the manifest is.
  TRIREME_RETURN_IF_ERROR(files_.sync_directory(path));
  TRIREME_RETURN_IF_ERROR(files_.rename(unfinished, join_path(path, kManifestName)));
  TRIREME_RETURN_IF_ERROR(files_.sync_directory(path));
  return files_.sync_directory(path_);
}

absl::Status CheckpointDirectory::remove(const CheckpointEntry& entry) {
  TRIREME_RETURN_IF_ERROR(ignore_not_found(files_.remove(join_path(entry.path, kManifestName))));
  // The manifest must be gone before the first file is, also after a loss of power.
  TRIREME_RETURN_IF_ERROR(files_.sync_directory(entry.path));
  return remove_folder(entry.path);
}

absl::Status CheckpointDirectory::remove_unfinished(const std::string& except) {
  absl::StatusOr<std::vector<std::string>> names = files_.list(path_);
  if (!names.ok()) return ignore_not_found(names.status());
  for (const std::string& name : *names) {
    const std::string folder = join_path(path_, name);
    if (!checkpoint_step(name) || folder == except) continue;
    TRIREME_RETURN_IF_ERROR(remove_if_unfinished(folder));
  }
  return absl::OkStatus();
}

absl::Status CheckpointDirectory::remove_if_unfinished(const std::string& folder) {
  TRIREME_ASSIGN_OR_RETURN(const bool committed, files_.exists(join_path(folder, kManifestName)));
  return committed ? absl::OkStatus() : ignore_not_found(remove_folder(folder));
}

absl::Status CheckpointDirectory::remove_files(const std::string& folder) {
  TRIREME_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(folder));
  for (const std::string& name : names) {
    if (!is_file_of_save(name)) continue;
    TRIREME_RETURN_IF_ERROR(ignore_not_found(files_.remove(join_path(folder, name))));
  }
  return absl::OkStatus();
}

absl::Status CheckpointDirectory::remove_folder(const std::string& folder) {
  TRIREME_RETURN_IF_ERROR(remove_files(folder));
  const absl::Status removed = files_.remove_directory(folder);
  // A folder with files of somebody else stays. Without a manifest it is not a checkpoint.
  if (!removed.ok() && error_code(removed) != ErrorCode::kFailedPrecondition) {
    return ignore_not_found(removed);
  }
  return files_.sync_directory(path_);
}

}  // namespace trireme::internal
