#pragma once

namespace trireme {

// The methods of trireme.Variables; ps/variables.proto says what they carry.
inline constexpr char kCreateVariables[] = "/trireme.Variables/Create";
inline constexpr char kLookupVariables[] = "/trireme.Variables/Lookup";
inline constexpr char kPullVariables[] = "/trireme.Variables/Pull";
inline constexpr char kPushVariables[] = "/trireme.Variables/Push";
inline constexpr char kDeleteVariables[] = "/trireme.Variables/Delete";
inline constexpr char kDropContainer[] = "/trireme.Variables/DropContainer";
inline constexpr char kSetOptimizer[] = "/trireme.Variables/SetOptimizer";
inline constexpr char kBeginWriter[] = "/trireme.Variables/BeginWriter";
inline constexpr char kEndWriter[] = "/trireme.Variables/EndWriter";
inline constexpr char kListVariables[] = "/trireme.Variables/List";

}  // namespace trireme
