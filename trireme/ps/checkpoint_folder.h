#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/files.h"

// The files of checkpoints on a server. A client program names the folder, but the server uses it
// only if it lies inside the server's checkpoint root, once symbolic links are resolved. In the
// folder, the server creates one file with a name of its own and opens files that the client names.
namespace trireme::internal {

// Name of the file by which a server checks that it sees the same folder as the client program.
inline constexpr char kProbeName[] = "probe";

// Returns an error of the disk as it is sent to clients: ABORTED in place of UNAVAILABLE, which
// would let them send the same call again and again.
absl::Status disk_error(const absl::Status& status);

// Returns the name of a server's file in a checkpoint: "ps-0-of-4.safetensors".
std::string server_file_name(uint32_t index, uint32_t servers);

// Returns the path of the folder without symbolic links. Returns PERMISSION_DENIED if it does not
// lie inside `root`, which is the working directory if it is empty, and FAILED_PRECONDITION if it
// does not exist.
absl::StatusOr<std::string> resolve_folder(const std::string& root, const std::string& directory);

// Writes a probe with random contents into the folder, in place of an earlier one, and returns the
// contents.
absl::StatusOr<std::string> write_probe(Files& files, const std::string& folder);
// Returns FAILED_PRECONDITION unless the folder has a probe with these contents.
absl::Status check_probe(Files& files, const std::string& folder, const std::string& probe);

// Opens a file in a folder that resolve_folder() returned. Returns INVALID_ARGUMENT if the name is
// not that of a file in the folder itself, and fails if it is a symbolic link.
absl::StatusOr<std::unique_ptr<InputFile>> open_in_folder(Files& files, const std::string& folder,
                                                          const std::string& name);

}  // namespace trireme::internal
