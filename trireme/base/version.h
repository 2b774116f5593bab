#pragma once

namespace trireme {

// Returns the version of Trireme, for example "0.1.0".
const char* version();

}  // namespace trireme
