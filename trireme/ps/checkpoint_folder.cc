#include "trireme/ps/checkpoint_folder.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "trireme/base/ids.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr uint64_t kMostProbeBytes = 64;

Origin folder_object(const std::string& folder) {
  return {"", absl::StrCat("folder '", folder, "'")};
}

absl::Status not_shared(const std::string& folder, const std::string& why) {
  return make_status(ErrorCode::kFailedPrecondition,
                     absl::StrCat("the folder is not shared: ", why,
                                  "; keep checkpoints on a file system that the program and all ps "
                                  "tasks have at the same path"),
                     folder_object(folder));
}

}  // namespace

absl::Status disk_error(const absl::Status& status) {
  if (error_code(status) != ErrorCode::kUnavailable) return status;
  return make_status(ErrorCode::kAborted, std::string(status.message()), error_origin(status));
}

std::string server_file_name(uint32_t index, uint32_t servers) {
  return absl::StrCat("ps-", index, "-of-", servers, ".safetensors");
}

absl::StatusOr<std::string> resolve_folder(const std::string& root, const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path allowed = fs::canonical(root.empty() ? "." : root, error);
  if (error) {
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("the server's checkpoint root '", root, "' cannot be used: ", error.message(),
                     "; create it, or start the server with another "
                     "--checkpoint-root"));
  }
  if (!fs::path(directory).is_absolute() || directory.find('\0') != std::string::npos) {
    return make_status(ErrorCode::kInvalidArgument, "the path is not absolute",
                       folder_object(directory));
  }
  const std::optional<std::string> folder = resolve_inside(directory, allowed.string());
  if (!folder) {
    return make_status(
        ErrorCode::kPermissionDenied,
        absl::StrCat("the server may read and write checkpoints only inside '", allowed.string(),
                     "'; start it with --checkpoint-root, which allows another folder"),
        folder_object(directory));
  }
  if (!fs::is_directory(*folder, error)) {
    return not_shared(directory, "it does not exist on this server");
  }
  return *folder;
}

absl::StatusOr<std::string> write_probe(Files& files, const std::string& folder) {
  const std::string path = join_path(folder, kProbeName);
  const std::string probe = format_incarnation(new_incarnation());
  TRIREME_ASSIGN_OR_RETURN(const bool left, files.exists(path));
  if (left) TRIREME_RETURN_IF_ERROR(files.remove(path));
  TRIREME_RETURN_IF_ERROR(files.write_text(path, probe));
  return probe;
}

absl::Status check_probe(Files& files, const std::string& folder, const std::string& probe) {
  if (probe.empty() || probe.size() > kMostProbeBytes) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("the probe has ", probe.size(), " bytes; it must have 1 to ",
                                    kMostProbeBytes));
  }
  const auto found =
      files.read_text(join_path(folder, kProbeName), kMostProbeBytes, Links::kReject);
  if (found.ok() && *found == probe) return absl::OkStatus();
  return not_shared(folder, found.ok() ? "the server finds another file `probe` there than the "
                                         "program has written"
                                       : "the server does not find the file `probe` that the "
                                         "program has written there");
}

absl::StatusOr<std::unique_ptr<InputFile>> open_in_folder(Files& files, const std::string& folder,
                                                          const std::string& name) {
  if (!is_plain_name(name)) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("'", name, "' is not the name of a file in the folder"),
                       folder_object(folder));
  }
  return files.open(join_path(folder, name), Links::kReject);
}

}  // namespace trireme::internal
