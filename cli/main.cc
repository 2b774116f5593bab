// The `trireme` command: starts servers, shows them, and runs whole clusters on one machine.
#include "cli/run_command.h"

int main(int argc, char** argv) {
  return trireme::run_command(argc, argv);
}
