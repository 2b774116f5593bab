#pragma once

#include <string>
#include <vector>

namespace trireme::internal {

// Returns texts for a message, the first ten of them: "'a', 'b'". Long ones are cut.
std::string listed_texts(const std::vector<const std::string*>& texts);

}  // namespace trireme::internal
