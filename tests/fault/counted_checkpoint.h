#pragma once

#include <string>
#include <vector>

namespace trireme {

// Checks a checkpoint of checkpoint_client.cc: that it is whole, and that its step, weights, fences
// and positions belong together. The positions of the workers say which examples were drawn; these
// must be the ones that were counted. Returns a description of the first difference, or an empty
// string if there is none.
std::string disagreement(const std::string& checkpoint);

// Returns the paths of the checkpoints in a folder, the newest first.
std::vector<std::string> checkpoints_in(const std::string& folder);

}  // namespace trireme
