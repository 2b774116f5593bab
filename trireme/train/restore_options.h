#pragma once

#include <string>
#include <vector>

namespace trireme {

// Options of CheckpointManager::restore() and load_state_dict().
struct RestoreOptions {
  // True to restore the tensors that agree in name, shape and dtype, and to leave all others as
  // they are. By default every difference is an error.
  bool partial = false;
  // Globs of names to restore: "encoder.*". `*` matches any characters, also dots and slashes.
  // Empty for all names.
  std::vector<std::string> patterns;
};

namespace internal {

// Returns true if the options select a tensor of this name.
bool is_selected(const RestoreOptions& options, const std::string& name);

}  // namespace internal
}  // namespace trireme
