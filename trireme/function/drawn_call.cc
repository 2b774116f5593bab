#include "trireme/function/drawn_call.h"

#include "trireme/base/error.h"

namespace trireme::internal {

void DrawnCall::adjust_up_to(const std::vector<size_t>& counts) {
  try {
    draws_.adjust(counts);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEndOfData) throw;
  }
}

std::vector<std::string> DrawnCall::signatures() const {
  std::vector<std::string> signatures = call_.arguments;
  for (size_t i = 0; i < call_.sources.size(); ++i) {
    std::string& signature = signatures[call_.source_arguments[i]];
    for (const Element& element : draws_.elements()[i]) {
      signature += " (";
      for (const at::Tensor& tensor : element) {
        append_tensor_signature(tensor, signature);
        signature += ',';
      }
      signature += ')';
    }
  }
  return signatures;
}

std::vector<at::Tensor> DrawnCall::inputs() const {
  std::vector<at::Tensor> inputs = call_.tensors;
  for (const auto& elements : draws_.elements()) {
    for (const Element& element : elements) {
      inputs.insert(inputs.end(), element.begin(), element.end());
    }
  }
  // Kernels of a replay take lazily conjugated and negated tensors for plain ones.
  for (at::Tensor& input : inputs) {
    if (input.defined() && (input.is_conj() || input.is_neg())) {
      input = input.resolve_conj().resolve_neg();
    }
  }
  return inputs;
}

std::vector<Draw> DrawnCall::layout(const std::vector<bool>& accepts_end) const {
  std::vector<Draw> layout;
  size_t input = call_.tensors.size();
  for (size_t i = 0; i < call_.sources.size(); ++i) {
    const auto& elements = draws_.elements()[i];
    layout.push_back({.argument = call_.source_arguments[i],
                      .resource = call_.sources[i]->resource(),
                      .elements = elements.size(),
                      .tensors = elements.empty() ? 0 : elements[0].size(),
                      .first_input = input,
                      .accepts_end = accepts_end[i]});
    input += layout.back().elements * layout.back().tensors;
  }
  return layout;
}

}  // namespace trireme::internal
