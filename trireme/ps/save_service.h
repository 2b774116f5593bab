#pragma once

#include <vector>

#include "trireme/ps/hosted_saves.h"
#include "trireme/rpc/service.h"

namespace trireme {

// The methods of trireme.Saves; ps/saves.proto says what they carry.
inline constexpr char kBeginSave[] = "/trireme.Saves/Begin";
inline constexpr char kWaitSave[] = "/trireme.Saves/Wait";
inline constexpr char kAbortSave[] = "/trireme.Saves/Abort";
inline constexpr char kLoadVariables[] = "/trireme.Saves/Load";

namespace internal {

// Returns the methods of trireme.Saves. `saves` must outlive them.
std::vector<Method> save_methods(HostedSaves& saves);

}  // namespace internal
}  // namespace trireme
