#pragma once

#include "absl/status/status.h"
#include "trireme/ps/parameter_server_backend.h"

namespace trireme::internal {

// Returns the error of a save or a restore. If a parameter server of the backend, which may be
// null, has caused it and is lost, this is DATA_LOSS that names the server; otherwise it is `error`
// itself. Asks the server, and blocks for at most 15 seconds if it does not answer.
absl::Status find_lost_server(const std::shared_ptr<ParameterServerBackend>& backend,
                              const absl::Status& error);

// Returns true for the error of a lost server: that of find_lost_server(), and that of a
// coordinator which has noticed the loss before. A damaged file that a server reads has it too.
bool is_lost_server(const absl::Status& error);

// Throws the error as PsLost if is_lost_server(), and otherwise as Error. Does nothing if it is OK.
void throw_lost_or_error(const absl::Status& error);

}  // namespace trireme::internal
