#pragma once

#include <trireme/trireme.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

// The cluster that an example runs on: the servers of `--target grpc://HOST:PORT[,...]`, or without
// that flag two workers and two parameter servers in this process.
class ExampleCluster {
 public:
  ExampleCluster(int argc, char** argv) {
    if (argc == 3 && std::string(argv[1]) == "--target") {
      std::istringstream list(argv[2]);
      for (std::string target; std::getline(list, target, ',');) targets_.push_back(target);
    } else if (argc == 1) {
      servers_.emplace(trireme::InProcessClusterOptions{.workers = 2, .ps = 2});
      for (int i = 0; i < 2; ++i) targets_.push_back(servers_->target({"worker", i}));
    }
    if (targets_.empty()) {
      std::fprintf(stderr, "usage: %s [--target grpc://HOST:PORT[,...]]\n", argv[0]);
      std::exit(2);
    }
  }

  // Returns the target for the session of the n-th client. With fewer targets than clients, some
  // clients share one.
  const std::string& target(size_t client = 0) const { return targets_[client % targets_.size()]; }

 private:
  std::optional<trireme::InProcessCluster> servers_;
  std::vector<std::string> targets_;
};
