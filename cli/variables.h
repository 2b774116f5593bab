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

// `trireme status --variables`: asks every server twice, `interval` apart, and prints what it holds
// and how often that was read and updated meanwhile. Throws Error if one does not answer in time.
void show_variables(const std::vector<AskedServer>& servers, const Credentials& credentials,
                    Duration limit, Duration interval, bool json);

}  // namespace trireme
