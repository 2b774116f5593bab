#pragma once

#include <string>

#include "trireme/base/files.h"
#include "trireme/ps/variable_store.h"
#include "trireme/rpc/service.h"

namespace trireme::internal {

// Serves /trireme.Saves/Load: reads bytes of files inside `checkpoint_root` into variables. The
// whole request is checked before anything is changed. Blocks while it reads, and answers the call.
void serve_load(VariableStore& store, Files& files, const std::string& checkpoint_root,
                ServerCall call);

}  // namespace trireme::internal
