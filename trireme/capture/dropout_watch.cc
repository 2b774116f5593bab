#include "trireme/capture/dropout_watch.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trireme/capture/call_site.h"

namespace trireme::internal {
namespace {

thread_local DropoutWatch* dropout_watch = nullptr;

bool is_dropout(absl::string_view op) {
  return absl::ConsumePrefix(&op, "aten::") && absl::StrContains(op, "dropout") &&
         !absl::StartsWith(op, "native_");
}

}  // namespace

DropoutWatch::DropoutWatch(IsKnown is_known) : is_known_(std::move(is_known)) {
  dropout_watch = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&DropoutWatch::on_operator)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

DropoutWatch::~DropoutWatch() {
  at::removeCallback(handle_);
  dropout_watch = nullptr;
}

std::unique_ptr<at::ObserverContext> DropoutWatch::on_operator(const at::RecordFunction& function) {
  DropoutWatch* watch = dropout_watch;
  if (watch == nullptr || !watch->unknown_.empty() || !is_dropout(function.name())) return nullptr;
  // All of them take (input, p, train).
  const auto inputs = function.inputs();
  if (inputs.size() < 3 || !inputs[1].isDouble() || !inputs[2].isBool()) return nullptr;
  if (watch->is_known_(inputs[1].toDouble(), inputs[2].toBool())) return nullptr;
  // torch::dropout(x, p, true) in the function itself has no mode that could change.
  std::string module = current_call_site().module;
  if (absl::StrContains(module, "Dropout")) watch->unknown_ = std::move(module);
  return nullptr;
}

}  // namespace trireme::internal
