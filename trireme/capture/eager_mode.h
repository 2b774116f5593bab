#pragma once

namespace trireme {

// Runs functions without capture, to debug them: with a debugger, with printing.
void run_eagerly(bool eagerly);
bool runs_eagerly();

}  // namespace trireme
