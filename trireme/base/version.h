#pragma once

namespace trireme {

// The release, as "0.1.0".
const char* version();

}  // namespace trireme
