#pragma once

namespace trireme {

// Switches eager mode on or off for the whole process. In eager mode captured functions run as
// plain code, so that breakpoints, prints and item() work in them. For debugging. Thread-safe.
void run_eagerly(bool eagerly);
// Returns true if eager mode is on.
bool runs_eagerly();

}  // namespace trireme
