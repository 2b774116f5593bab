#pragma once

namespace trireme {

// The version of the library that the program runs with, as "0.1.0". TRIREME_VERSION is the one
// that it was compiled with.
const char* version();

}  // namespace trireme
