#pragma once

#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/rpc/credentials.h"

namespace trireme {

struct AskedServer {
  std::string task;
  std::string address;
};

// Implements `trireme status --variables`. Asks every server twice, `interval` apart, and prints
// its variables and how often they were read and updated between the two answers. Throws Error if a
// server does not answer within `limit`.
void show_variables(const std::vector<AskedServer>& servers, const Credentials& credentials,
                    Duration limit, Duration interval, bool json);

}  // namespace trireme
