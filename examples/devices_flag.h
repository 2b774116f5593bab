#pragma once

#include <trireme/trireme.h>

#include <sstream>
#include <string>
#include <vector>

// The flag that names the devices of an example, for its Usage.
inline const trireme::FlagUsage kDevicesFlag = {
    "--devices", "LIST", "devices of the replicas, as gpu:0,gpu:1; default: cpu:0,cpu:1"};

// Returns the devices of the flag, which are two logical CPUs unless it names others.
inline std::vector<std::string> devices_of(const trireme::Flags& flags) {
  std::vector<std::string> devices;
  std::istringstream list(flags.value("--devices", "cpu:0,cpu:1"));
  for (std::string device; std::getline(list, device, ',');) devices.push_back(device);
  return devices;
}
