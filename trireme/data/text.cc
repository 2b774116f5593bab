#include "trireme/data/text.h"

#include <ATen/ops/zeros.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"
#include "trireme/capture/device_request.h"
#include "trireme/data/element.h"
#include "trireme/data/listed_texts.h"

namespace trireme {

std::string text_of(const at::Tensor& row) {
  if (!row.defined() || row.dim() != 1 || row.scalar_type() != at::kByte) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("the tensor is ", row.defined() ? to_string(spec_of({row})) : "undefined",
                     "; text is a one-dimensional tensor of uint8, which is one row of a "
                     "column of text"),
        {"", "text_of"});
  }
  const internal::SuspendDeviceCheck own;
  const at::Tensor bytes = row.contiguous();
  const auto* const begin = bytes.const_data_ptr<uint8_t>();
  std::string text(begin, begin + bytes.numel());
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

at::Tensor text_tensor(const std::vector<std::string>& texts, int64_t bytes) {
  const auto reject = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message, {"", "text_tensor"});
  };
  if (bytes < 1) reject(absl::StrCat("bytes is ", bytes, "; it must be at least 1"));
  std::vector<const std::string*> too_long, with_zeros;
  for (const std::string& text : texts) {
    if (text.size() > static_cast<uint64_t>(bytes)) too_long.push_back(&text);
    if (text.find('\0') != std::string::npos) with_zeros.push_back(&text);
  }
  if (!too_long.empty()) {
    reject(absl::StrCat(too_long.size(), " of ", texts.size(), " texts have more than ", bytes,
                        " bytes: ", internal::listed_texts(too_long), "; raise bytes"));
  }
  if (!with_zeros.empty()) {
    reject(absl::StrCat(
        with_zeros.size(), " of ", texts.size(),
        " texts have a zero byte, which text cannot have: ", internal::listed_texts(with_zeros)));
  }
  const internal::SuspendDeviceCheck own;
  at::Tensor tensor = at::zeros({static_cast<int64_t>(texts.size()), bytes}, at::kByte);
  auto* row = tensor.mutable_data_ptr<uint8_t>();
  for (const std::string& text : texts) {
    std::memcpy(row, text.data(), text.size());
    row += bytes;
  }
  return tensor;
}

}  // namespace trireme
