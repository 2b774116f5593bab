#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trireme {

// Looks a variable up by name. Resolvers read through one, so that a test or an embedding program
// can say what the environment is without changing the process.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// The variables of this process.
Environment process_environment();

}  // namespace trireme
