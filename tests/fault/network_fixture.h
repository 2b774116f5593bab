#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "trireme/base/status.h"
#include "trireme/rpc/temporary_folder.h"
#include "trireme/testing/process_cluster.h"

namespace trireme {

// Two workers and two parameter servers, each on a host of its own. Skips the tests on a machine
// without network namespaces; a derived class then finds IsSkipped() in its own SetUp().
class NetworkFixture : public testing::Test {
 protected:
  void SetUp() override {
    if (!entered_.ok()) {
      GTEST_SKIP() << "there are no network namespaces here: " << describe(entered_);
    }
    network_.emplace();
    cluster_.emplace(
        ProcessClusterOptions{{.workers = 2, .ps = 2}, {}, folder_.path(), {}, &*network_});
  }
  void TearDown() override {
    if (network_) network_->heal();
  }

  // First, since a process can enter a network only before it has threads.
  const absl::Status entered_ = Network::enter();
  std::optional<Network> network_;
  const TemporaryFolder folder_;
  std::optional<ProcessCluster> cluster_;
};

}  // namespace trireme
