#include "trireme/capture/variable_backend.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/warn_once.h"
#include "trireme/graph/operators.h"

namespace trireme::internal {
namespace {

thread_local std::vector<std::shared_ptr<VariableBackend>> backends;

}  // namespace

Error not_on_task(const std::string& variable, const DeviceSpec& device,
                  const std::string& places) {
  return Error(ErrorCode::kInvalidArgument,
               absl::StrCat("it is made in the scope of device '", device.to_string(),
                            "', but inside of the strategy's scope, which puts variables on ",
                            places, "; leave one of the two scopes"),
               {"", absl::StrCat("variable '", variable, "'")});
}

void warn_of_unused_device(const DeviceSpec& device, const std::string& places) {
  warn_once(absl::StrCat("the scope of device '", device.to_string(),
                         "' has no effect on variables of the strategy, which are on ", places));
}

std::string stale_message(const std::string& variable, const std::vector<std::string>& places) {
  return absl::StrCat(
      "variable '", variable, "' lives on ", absl::StrJoin(places, ", "),
      "; the program has only its initial values. Use it in a captured function, or copy the "
      "current values into an ordinary module with strategy.pull(module, local), and back with "
      "strategy.push(module, local)");
}

BackendScope::BackendScope(std::shared_ptr<VariableBackend> backend) {
  backends.push_back(std::move(backend));
}

BackendScope::~BackendScope() {
  backends.pop_back();
}

const std::shared_ptr<VariableBackend>& current_backend() {
  static const std::shared_ptr<VariableBackend> program;
  return backends.empty() ? program : backends.back();
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
