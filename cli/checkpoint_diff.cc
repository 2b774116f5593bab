// Compares checkpoints by the values of whole tensors, so that it does not matter over how many
// servers they were spread.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/checkpoint.h"
#include "cli/command.h"
#include "cli/progress_bar.h"
#include "trireme/base/status.h"
#include "trireme/tensor/dtype.h"
#include "trireme/tensor/format_shape.h"

namespace trireme {
namespace {

using internal::CheckpointReader;
using internal::Manifest;
using internal::SavedVariable;

// Returns how the contents differ, bit by bit; empty if they are equal.
std::string difference_of(const at::Tensor& first, const at::Tensor& second) {
  constexpr int64_t kElements = 1 << 20;  // Elements that are compared at a time.
  const at::Tensor a = first.flatten(), b = second.flatten();
  const size_t size = a.element_size();
  const bool is_complex = a.is_complex();
  const c10::ScalarType wide = is_complex ? at::kComplexDouble : at::kDouble;
  int64_t differ = 0;
  double most = 0;
  for (int64_t from = 0; from < a.numel(); from += kElements) {
    const int64_t count = std::min(kElements, a.numel() - from);
    const at::Tensor x = a.narrow(0, from, count), y = b.narrow(0, from, count);
    const char* left = static_cast<const char*>(x.const_data_ptr());
    const char* right = static_cast<const char*>(y.const_data_ptr());
    if (std::memcmp(left, right, count * size) == 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      differ += std::memcmp(left + i * size, right + i * size, size) != 0;
    }
    const double here = x.to(wide).sub(y.to(wide)).abs().max().item().toDouble();
    if (!std::isnan(most) && !(here <= most)) most = here;
  }
  if (differ == 0) return "";
  return absl::StrFormat("%d of %d elements differ, by at most %g", differ, a.numel(), most);
}

std::string options_text(const SavedVariable& variable) {
  if (variable.rule.empty()) return "no optimizer";
  return absl::StrCat(variable.rule, " with ",
                      absl::StrJoin(variable.options, ", ", absl::PairFormatter("=")));
}

// Collects and prints the differences of two checkpoints.
class CheckpointDiff {
 public:
  CheckpointDiff(const CheckpointReader& first, const CheckpointReader& second)
      : first_(first), second_(second) {}

  // Returns the lines to print.
  std::vector<std::string> run() {
    std::map<std::string, const SavedVariable*> others;
    for (const auto& variable : second_.manifest().variables) others[variable.name] = &variable;
    for (const auto& variable : first_.manifest().variables) {
      const auto other = others.find(variable.name);
      if (other != others.end()) total_ += bytes_of(variable);
    }
    for (const auto& variable : first_.manifest().variables) {
      const auto other = others.find(variable.name);
      if (other == others.end()) {
        add(variable.name, absl::StrCat("only in ", first_.path()));
        continue;
      }
      compare(variable, *other->second);
      others.erase(other);
    }
    for (const auto& [name, variable] : others) add(name, "only in " + second_.path());
    compare_state();
    return std::move(lines_);
  }

  size_t equal_tensors() const { return equal_; }

 private:
  static uint64_t bytes_of(const SavedVariable& variable) {
    return variable.bytes() * (1 + variable.slots.size());
  }

  void add(const std::string& name, const std::string& text) {
    lines_.push_back(absl::StrCat(name, ": ", text));
  }

  template <typename T>
  void compare_texts(const std::string& name, const T& first, const T& second) {
    if (first != second) add(name, absl::StrCat(first, " and ", second));
  }

  void compare(const SavedVariable& first, const SavedVariable& second) {
    if (first.dtype != second.dtype || first.sizes != second.sizes) {
      add(first.name, absl::StrCat(dtype_name(first.dtype), " ", format_shape(first.sizes), " and ",
                                   dtype_name(second.dtype), " ", format_shape(second.sizes)));
      bar_.update(done_ += bytes_of(first), total_);
      return;
    }
    compare_values(first.name, value_or_throw(first_.read(first)),
                   value_or_throw(second_.read(second)), first.bytes());
    compare_texts(first.name, options_text(first), options_text(second));
    for (size_t i = 0; i < first.slots.size(); ++i) {
      const std::string name = absl::StrCat(first.name, "#", first.slots[i]);
      const auto other = std::find(second.slots.begin(), second.slots.end(), first.slots[i]);
      if (other == second.slots.end()) {
        add(name, absl::StrCat("only in ", first_.path()));
        continue;
      }
      compare_values(
          name, value_or_throw(first_.read_slot(first, static_cast<int>(i))),
          value_or_throw(second_.read_slot(second, static_cast<int>(other - second.slots.begin()))),
          first.bytes());
    }
    for (const std::string& slot : second.slots) {
      if (std::find(first.slots.begin(), first.slots.end(), slot) == first.slots.end()) {
        add(absl::StrCat(first.name, "#", slot), absl::StrCat("only in ", second_.path()));
      }
    }
    compare_texts(absl::StrCat(first.name, "#step"), updates_of(first), updates_of(second));
  }

  void compare_values(const std::string& name, const at::Tensor& first, const at::Tensor& second,
                      uint64_t bytes) {
    const std::string text = difference_of(first, second);
    if (text.empty()) {
      ++equal_;
    } else {
      add(name, text);
    }
    bar_.update(done_ += bytes, total_);
  }

  // Compares everything but the tensors.
  void compare_state() {
    const Manifest& first = first_.manifest();
    const Manifest& second = second_.manifest();
    compare_texts("step", first.step, second.step);
    compare_texts("seed", first.seed, second.seed);
    if (first.functions != second.functions) add("functions", "other numbers of calls");
    if (first.iterators != second.iterators) add("iterators", "other positions");
    if (first.texts != second.texts) add("texts", "other contents");
  }

  const CheckpointReader& first_;
  const CheckpointReader& second_;
  std::vector<std::string> lines_;
  size_t equal_ = 0;
  uint64_t done_ = 0, total_ = 0;
  ProgressBar bar_{"diff", stderr};
};

}  // namespace

int diff_checkpoints(const std::string& first, const std::string& second) {
  const auto a = open_checkpoint(first);
  const auto b = open_checkpoint(second);
  std::vector<std::string> lines;
  size_t equal = 0;
  {
    CheckpointDiff diff(*a, *b);
    lines = diff.run();
    equal = diff.equal_tensors();
  }
  for (const std::string& line : lines) absl::PrintF("%s\n", line);
  absl::PrintF("%s and %s: %d tensors are equal, %d differences\n", first, second, equal,
               lines.size());
  return lines.empty() ? 0 : kRunTimeError;
}

}  // namespace trireme
