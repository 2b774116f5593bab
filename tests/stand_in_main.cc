// The `trireme` command with the stand-in accelerator, for the processes of tests that run on it.
#include "cli/run_command.h"
#include "tests/stand_in_devices.h"

int main(int argc, char** argv) {
  trireme::register_stand_in_of_environment();
  return trireme::run_command(argc, argv);
}
