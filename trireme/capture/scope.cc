#include "trireme/capture/scope.h"

#include <utility>

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

namespace internal {

const std::vector<std::string>& scope_stack() {
  return scope_names;
}

SuspendScopes::SuspendScopes(size_t keep) : suspended_(scope_names) {
  scope_names.resize(keep);
}

SuspendScopes::~SuspendScopes() {
  scope_names = std::move(suspended_);
}

}  // namespace internal
}  // namespace trireme
