#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trireme/data/dataset_step.h"
#include "trireme/data/stream.h"
#include "trireme/function/draws.h"

namespace trireme::internal {

// Starts a pass over the elements of a generator: returns a function that makes them one by one.
using GeneratorBody = std::function<std::function<std::optional<Element>()>(uint64_t seed)>;

// Registers a generator of this program. Throws Error if the name is taken.
void register_generator(const std::string& name, GeneratorBody body);

// Gives the elements of a generator that is registered. Each is compared with the columns of the
// step. `key` becomes the seed. If the program has no such generator, all calls return an error.
StreamPtr<Element> open_generated(DatasetStepPtr step, uint64_t key);

}  // namespace trireme::internal
