// The table of Model::summary(): one row for each layer that has parameters or buffers of its own.
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "trireme/base/access.h"
#include "trireme/capture/variable_registry.h"
#include "trireme/model/model_core.h"
#include "trireme/tensor/format_shape.h"

namespace trireme::internal {
namespace {

using SummaryRow = std::vector<std::string>;

// Returns a number with separators: "1,234,567".
std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

// Returns the class of a module as programs write it: "Linear" for torch::nn::LinearImpl.
std::string class_of(const torch::nn::Module& module) {
  const std::string name = absl::StrReplaceAll(module.name(), {{"torch::nn::", ""}});
  return std::string(absl::StripSuffix(name, "Impl"));
}

std::string format_table(const std::vector<SummaryRow>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const SummaryRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const SummaryRow& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

}  // namespace

std::string summarize(const torch::nn::Module& module, const std::vector<Variable>& variables) {
  std::map<const void*, std::set<std::string>> places;  // by tensor
  for (const Variable& variable : variables) {
    std::set<std::string>& found =
        places[Access<Variable>::record(variable)->tensor.unsafeGetTensorImpl()];
    for (const std::string& device : variable.shards()) {
      found.insert(device.empty() ? "this process" : device);
    }
  }
  std::vector<SummaryRow> rows{{"Layer", "Class", "Shapes", "Parameters", "Place"}};
  int64_t trainable = 0, frozen = 0;
  const auto add_row = [&](const std::string& path, const torch::nn::Module& layer) {
    std::vector<std::string> shapes;
    std::set<std::string> where;
    int64_t count = 0;
    for (const auto& item : layer.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      shapes.push_back(format_shape(tensor.sizes()));
      count += tensor.numel();
      (tensor.requires_grad() ? trainable : frozen) += tensor.numel();
      where.merge(std::set<std::string>(places[tensor.unsafeGetTensorImpl()]));
    }
    if (count == 0) return;
    rows.push_back({path.empty() ? "(net)" : path, class_of(layer), absl::StrJoin(shapes, " "),
                    with_commas(count), absl::StrJoin(where, " ")});
  };
  for (const auto& item : module.named_modules()) add_row(item.key(), *item.value());
  return absl::StrCat(format_table(rows), "Trainable parameters: ", with_commas(trainable),
                      "\nFrozen parameters: ", with_commas(frozen), "\n");
}

}  // namespace trireme::internal
