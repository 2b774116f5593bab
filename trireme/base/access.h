#pragma once

namespace trireme::internal {

// Gives the other modules of Trireme access to the parts of a public class T that users do not
// need: its internals, and a way to make a T from them. A class that needs this declares
// `friend struct internal::Access<T>`, and specialises Access beside itself.
template <class T>
struct Access;

}  // namespace trireme::internal
