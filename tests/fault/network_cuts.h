#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "trireme/testing/network.h"
#include "trireme/testing/setting.h"

namespace trireme {

// How two hosts are cut off from each other: the directions in which packets are dropped, or no
// route from the first host to the second, so that connections break and new ones fail at once.
struct NetworkCut {
  const char* name;
  bool there;  // true if no packet arrives at the second host
  bool back;   // true if no packet arrives at the first host
  bool no_route = false;

  void apply(Network& network, const std::string& one, const std::string& other) const {
    if (no_route) network.unroute(one, other);
    if (there) network.block(one, other);
    if (back) network.block(other, one);
  }
};

inline constexpr NetworkCut kCutBothWays{"BothWays", true, true};
inline constexpr NetworkCut kCutThere{"ThereOnly", true, false};
inline constexpr NetworkCut kCutBack{"BackOnly", false, true};
inline constexpr NetworkCut kNoRoute{"NoRoute", false, false, true};

inline void PrintTo(const NetworkCut& cut, std::ostream* out) {
  *out << cut.name;
}

// Returns the cuts that a test tries: both ways only, or with TRIREME_FULL=1 also each one alone.
inline std::vector<NetworkCut> network_cuts() {
  if (setting("TRIREME_FULL", 0) == 0) return {kCutBothWays};
  return {kCutBothWays, kCutThere, kCutBack};
}

inline std::string name_of_cut(const testing::TestParamInfo<NetworkCut>& info) {
  return info.param.name;
}

}  // namespace trireme
