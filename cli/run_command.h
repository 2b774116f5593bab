#pragma once

namespace trireme {

// Runs the `trireme` command with the arguments of main() and returns its exit code.
int run_command(int argc, char** argv);

}  // namespace trireme
