#include "trireme/metric/metric.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/capture.h"
#include "trireme/capture/device_request.h"
#include "trireme/metric/metric_rule.h"

namespace trireme {
namespace {

Error metric_error(const Metric& metric, const std::string& why) {
  return Error(ErrorCode::kFailedPrecondition, why,
               {"", absl::StrCat("metric '", metric.name(), "'")});
}

const Variable& bound_sums(const Metric& metric, const std::optional<Variable>& sums,
                           const char* call) {
  if (sums.has_value()) return *sums;
  throw metric_error(
      metric, absl::StrCat("cannot ", call,
                           "(): it is a recipe, made without a strategy. Make it with a strategy, "
                           "or use the metric that its bind() returns"));
}

void check_outside(const Metric& metric, const char* call, const char* why) {
  if (!internal::is_capturing()) return;
  throw metric_error(metric, absl::StrCat("cannot ", call, "() in the captured function '",
                                          internal::captured_function(), "': ", why));
}

}  // namespace

Metric::Metric(std::shared_ptr<const internal::MetricRule> rule) : rule_(std::move(rule)) {}

const std::string& Metric::name() const {
  return rule_->name();
}

void Metric::update(const at::Tensor& targets, const at::Tensor& outputs,
                    const at::Tensor& weights) const {
  const Variable& sums = bound_sums(*this, sums_, "update");
  const at::NoGradGuard no_gradients;
  sums.assign_add(rule_->sums_of(targets, outputs, weights));
}

double Metric::result() const {
  const Variable& sums = bound_sums(*this, sums_, "result");
  check_outside(*this, "result",
                "a number there would be a constant of the graph. Call it after "
                "the steps");
  const at::NoGradGuard no_gradients;
  const internal::SuspendDeviceCheck no_device_check;
  return rule_->result(sums.read().detach().to(at::kCPU).contiguous());
}

void Metric::reset() const {
  const Variable& sums = bound_sums(*this, sums_, "reset");
  sums.assign(at::zeros({rule_->sums()}, at::kDouble));
}

Metric Metric::bind() const {
  check_outside(*this, "bind",
                "its sums would be lost after each step. Make the metric before the "
                "function");
  const internal::SuspendDeviceCheck no_device_check;
  Metric metric(rule_);
  metric.sums_.emplace(name() + "/sums", at::zeros({rule_->sums()}, at::kDouble),
                       VariableOptions{.trainable = false, .aggregation = Aggregation::kSum});
  return metric;
}

}  // namespace trireme
