#include "trireme/capture/scope.h"

#include "trireme/capture/scope_stack.h"

namespace trireme {
namespace {

thread_local std::vector<std::string> scope_names;

}  // namespace

Scope::Scope(const std::string& name) {
  scope_names.push_back(name);
}

Scope::~Scope() {
  scope_names.pop_back();
}

const std::vector<std::string>& internal::scope_stack() {
  return scope_names;
}

}  // namespace trireme
