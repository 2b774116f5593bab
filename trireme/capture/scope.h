#pragma once

#include <string>

namespace trireme {

// Names a part of a step while it lives. Operators that are captured in it carry the name into
// explanations, traces and errors. Scopes nest. Affects only the thread that made it.
//
//   tr::Scope scope("loss");
class Scope {
 public:
  // Begins the part with this name.
  explicit Scope(const std::string& name);
  // Ends the part.
  ~Scope();

  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace trireme
