#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "trireme/rpc/channel.h"

namespace trireme {

// The variables of a server and their memory, as `trireme status` shows them.
struct VariableList {
  // A variable, or one shard of a variable.
  struct Entry {
    std::string job;  // empty for a variable of no job, such as that of a session
    std::string container;
    std::string name;
    std::string shape;                // dtype and sizes, as "float32 [3, 4]"
    std::string optimizer;            // name of the optimizer; empty for none
    uint64_t bytes = 0;               // size of the contents
    uint64_t state_bytes = 0;         // size of the optimizer's state
    uint64_t record_bytes = 0;        // size of the records of pushes
    uint64_t reads = 0, updates = 0;  // number of each since the variable was created
  };

  std::vector<Entry> variables;  // sorted by job, container and name
  uint64_t bytes = 0;            // size of all variables and their optimizers' state
  uint64_t limit = 0;            // limit for `bytes`; 0 for no limit
  uint64_t writers = 0;          // number of registered writers
  uint64_t record_bytes = 0;     // size of the records of pushes of all variables
};

// Fetches the list from the server at the other end of a channel. The first calls `done` once; the
// second blocks.
void list_variables(Channel& channel, Time deadline,
                    absl::AnyInvocable<void(absl::StatusOr<VariableList>)> done);
absl::StatusOr<VariableList> list_variables(Channel& channel, Time deadline);

}  // namespace trireme
