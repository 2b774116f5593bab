#include "trireme/capture/variable_home.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

thread_local std::vector<std::shared_ptr<VariableHome>> homes;

}  // namespace

HomeScope::HomeScope(std::shared_ptr<VariableHome> home) {
  homes.push_back(std::move(home));
}

HomeScope::~HomeScope() {
  homes.pop_back();
}

const std::shared_ptr<VariableHome>& current_home() {
  static const std::shared_ptr<VariableHome> program;
  return homes.empty() ? program : homes.back();
}

void record_gradient(const at::Tensor& variable, const at::Tensor& gradient, const at::Tensor& lr) {
  register_own_operators();
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("trireme::push_gradient", "")
          .typed<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  op.call(variable, gradient, lr);
}

}  // namespace trireme::internal
