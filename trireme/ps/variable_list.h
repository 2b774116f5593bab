#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// What a server says of its variables.
struct VariableList {
  struct Entry {
    std::string container;
    std::string name;
    std::string shape;  // "float32 [3, 4]"
    std::string optimizer;
    uint64_t bytes = 0;
    uint64_t state_bytes = 0;   // of the optimizer
    uint64_t record_bytes = 0;  // of what it remembers of pushes
    uint64_t reads = 0, updates = 0;
  };

  std::vector<Entry> variables;  // by container and name
  uint64_t bytes = 0;            // of all, optimizers' state too
  uint64_t limit = 0;            // 0: none
  uint64_t writers = 0;
  uint64_t record_bytes = 0;
};

// Asks the server at the other end of a channel; calls back once.
void list_variables(Channel& channel, Time deadline,
                    absl::AnyInvocable<void(absl::StatusOr<VariableList>)> done);
absl::StatusOr<VariableList> list_variables(Channel& channel, Time deadline);

}  // namespace trireme
