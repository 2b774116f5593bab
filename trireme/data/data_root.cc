#include "trireme/data/data_root.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "trireme/base/files.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<fs::path> resolve_root(const std::string& root) {
  if (root.empty()) {
    return make_status(ErrorCode::kFailedPrecondition,
                       "the dataset reads files, but this server may read none; start it with "
                       "--data-root DIR, the folder of the data",
                       {"", "dataset"});
  }
  std::error_code error;
  fs::path resolved = fs::canonical(root, error);
  if (!error) return resolved;
  return make_status(
      ErrorCode::kFailedPrecondition,
      absl::StrCat("the server's data root '", root, "' cannot be used: ", error.message(),
                   "; create it, or start the server with another --data-root"),
      {"", "dataset"});
}

absl::Status resolve_file(std::string& name, const fs::path& root) {
  if (name.empty() || name.find('\0') != std::string::npos) {
    return make_status(ErrorCode::kInvalidArgument,
                       "the name of a file is empty or has a zero byte", {"", "dataset"});
  }
  const fs::path given = root == root.root_path() ? fs::path(name) : root / name;
  const std::optional<std::string> path = resolve_inside(given.string(), root.string());
  if (!path) {
    return make_status(
        ErrorCode::kPermissionDenied,
        absl::StrCat("the server may read data only inside '", root.string(),
                     "'; move the file there, or start the server with another --data-root"),
        {"", absl::StrCat("file '", name, "'")});
  }
  name = *path;
  return absl::OkStatus();
}

}  // namespace

absl::Status resolve_files(proto::DatasetDef& def, const std::string& root) {
  for (proto::DatasetStep& step : *def.mutable_steps()) {
    if (step.has_files()) {
      TRIREME_ASSIGN_OR_RETURN(const fs::path folder, resolve_root(root));
      for (std::string& name : *step.mutable_files()->mutable_names()) {
        TRIREME_RETURN_IF_ERROR(resolve_file(name, folder));
      }
    } else if (step.has_zip()) {
      for (proto::DatasetDef& other : *step.mutable_zip()->mutable_others()) {
        TRIREME_RETURN_IF_ERROR(resolve_files(other, root));
      }
    } else if (step.has_concatenate()) {
      TRIREME_RETURN_IF_ERROR(resolve_files(*step.mutable_concatenate()->mutable_other(), root));
    }
  }
  return absl::OkStatus();
}

}  // namespace trireme::internal
