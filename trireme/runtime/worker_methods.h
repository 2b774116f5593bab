#pragma once

namespace trireme::internal {

// Methods of trireme.Worker (session.proto), which masters and other workers call.
inline constexpr char kRegisterPart[] = "/trireme.Worker/RegisterPart";
inline constexpr char kDropParts[] = "/trireme.Worker/DropParts";
inline constexpr char kRunPart[] = "/trireme.Worker/RunPart";
inline constexpr char kDeliver[] = "/trireme.Worker/Deliver";
inline constexpr char kAbortStep[] = "/trireme.Worker/AbortStep";
inline constexpr char kFindVariables[] = "/trireme.Worker/FindVariables";
inline constexpr char kMakeVariables[] = "/trireme.Worker/MakeVariables";
inline constexpr char kRenewSession[] = "/trireme.Worker/RenewSession";
inline constexpr char kEndSession[] = "/trireme.Worker/EndSession";

}  // namespace trireme::internal
