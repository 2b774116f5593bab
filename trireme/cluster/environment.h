#pragma once

#include <functional>
#include <optional>
#include <string>

namespace trireme {

// Looks up an environment variable by name; returns nullopt if it is not set. Resolvers read
// variables through it, so that a test or an embedding program can provide its own.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// Returns the environment of this process.
Environment process_environment();

}  // namespace trireme
