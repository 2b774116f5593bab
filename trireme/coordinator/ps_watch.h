#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/coordinator/closure_queue.h"
#include "trireme/rpc/channel.h"
#include "trireme/runtime/life_signs.h"

namespace trireme::internal {

// Finds out whether a parameter server that some worker could not use is lost: the worker may be
// the one that is cut off, so the coordinator asks by itself. If it is, the queue is closed with
// DATA_LOSS. Thread-safe.
class PsWatch {
 public:
  // `incarnations` of the ps tasks: whoever is another has lost the variables.
  PsWatch(const ClusterSpec& spec, const Credentials& credentials,
          std::vector<uint64_t> incarnations, std::shared_ptr<LifeSigns> life_signs,
          std::shared_ptr<ClosureQueue> queue);

  // Whether an error says that a ps task did not do its part.
  bool concerns(const absl::Status& error) const { return server_of(error) >= 0; }
  // Asks the ps task of such an error. Calls back once, after the queue was closed if it is lost.
  using Done = absl::AnyInvocable<void(bool lost)>;
  void ask(const absl::Status& error, Done done);

 private:
  int server_of(const absl::Status& error) const;

  const std::vector<uint64_t> incarnations_;
  const std::shared_ptr<LifeSigns> life_signs_;
  const std::shared_ptr<ClosureQueue> queue_;
  std::vector<std::shared_ptr<Channel>> channels_;
};

// Whether an error says that nobody is there, or another than was meant.
bool says_gone(const absl::Status& error);

}  // namespace trireme::internal
