#include "trireme/model/figure_sums.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/access.h"
#include "trireme/base/error.h"
#include "trireme/metric/metric_rule.h"

namespace trireme::internal {
namespace {

// By hand, since a call of an operator takes longer than the few additions.
template <typename Number>
void add_numbers(const Number* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

void FigureSums::add(const std::vector<at::Tensor>& sums) {
  if (sums.empty()) return;
  if (sums_.empty()) {
    for (const at::Tensor& sum : sums) sums_.push_back(sum.to(at::kDouble, false, /*copy=*/true));
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const at::Tensor added = sums[i].contiguous();
    double* to = sums_[i].mutable_data_ptr<double>();
    if (added.scalar_type() == at::kFloat) {
      add_numbers(added.const_data_ptr<float>(), added.numel(), to);
    } else {
      add_numbers(added.const_data_ptr<double>(), added.numel(), to);
    }
  }
}

int64_t FigureSums::steps_of(const std::vector<at::Tensor>& sums) {
  if (sums.empty()) return 0;
  const bool is_float = sums[0].scalar_type() == at::kFloat;
  return std::llround(is_float ? sums[0].const_data_ptr<float>()[kSteps]
                               : sums[0].const_data_ptr<double>()[kSteps]);
}

int64_t FigureSums::steps() const {
  return steps_of(sums_);
}

void FigureSums::write(const std::string& prefix, Logs& logs) const {
  if (sums_.empty()) return;
  const double* leading = sums_[0].const_data_ptr<double>();
  if (own_figures_ != nullptr) {
    const double* figures = sums_[1].const_data_ptr<double>();
    for (size_t i = 0; i < own_figures_->size(); ++i) {
      logs.set(prefix + (*own_figures_)[i], figures[i] / leading[kSteps]);
    }
    return;
  }
  logs.set(prefix + "loss", leading[kLoss] / leading[kExamples]);
  for (size_t i = 0; i < metrics_.size(); ++i) {
    logs.set(prefix + metrics_[i].name(), Access<Metric>::rule(metrics_[i]).result(sums_[i + 1]));
  }
}

// Hexadecimal numbers have every bit of a double, and a form for NaN and infinity.
std::string FigureSums::save() const {
  std::string text;
  for (const at::Tensor& sum : sums_) {
    if (!text.empty()) text += ';';
    for (int64_t i = 0; i < sum.numel(); ++i) {
      char number[40];
      std::snprintf(number, sizeof(number), "%a", sum.const_data_ptr<double>()[i]);
      absl::StrAppend(&text, i == 0 ? "" : " ", number);
    }
  }
  return text;
}

void FigureSums::restore(const std::string& text) {
  sums_.clear();
  if (text.empty()) return;
  const std::vector<std::string> lists = absl::StrSplit(text, ';');
  const size_t expected = 1 + (own_figures_ != nullptr ? 1 : metrics_.size());
  if (lists.size() != expected) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the saved state of fit() has ", lists.size() - 1,
                             " sums of metrics, but the model has ", expected - 1,
                             "; compile it with the same metrics"));
  }
  for (const std::string& list : lists) {
    const std::vector<std::string> numbers = absl::StrSplit(list, ' ', absl::SkipEmpty());
    at::Tensor sum = at::empty({static_cast<int64_t>(numbers.size())}, at::kDouble);
    for (size_t i = 0; i < numbers.size(); ++i) {
      char* end = nullptr;
      sum.mutable_data_ptr<double>()[i] = std::strtod(numbers[i].c_str(), &end);
      if (*end == '\0') continue;
      throw Error(ErrorCode::kInvalidArgument,
                  absl::StrCat("'", numbers[i], "' in the saved state of fit() is not a number"));
    }
    sums_.push_back(std::move(sum));
  }
  if (sums_[0].numel() == kLeading) return;
  throw Error(ErrorCode::kInvalidArgument, "the saved state of fit() has no valid sums");
}

}  // namespace trireme::internal
