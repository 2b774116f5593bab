#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

// Returns the devices of `--devices cpu:0,cpu:1`, which are two logical CPUs unless the flag names
// others. Ends the program if it was given anything else.
inline std::vector<std::string> devices_flag(int argc, char** argv) {
  if (argc != 1 && (argc != 3 || std::string(argv[1]) != "--devices")) {
    std::fprintf(stderr, "usage: %s [--devices cpu:0,cpu:1]\n", argv[0]);
    std::exit(2);
  }
  std::vector<std::string> devices;
  std::istringstream list(argc == 3 ? argv[2] : "cpu:0,cpu:1");
  for (std::string device; std::getline(list, device, ',');) devices.push_back(device);
  return devices;
}
