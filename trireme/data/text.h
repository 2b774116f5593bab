#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

// Returns the text of one row of a text column: the bytes up to the zeros that fill it up. Throws
// Error unless `row` is a one-dimensional tensor of torch::kByte.
std::string text_of(const at::Tensor& row);

// Returns texts as a tensor of torch::kByte, one row for each, filled up with zeros to `bytes`
// bytes. Datasets give columns of text in this form (text_column()). Throws Error, which lists the
// texts, if some are longer or have a zero byte.
at::Tensor text_tensor(const std::vector<std::string>& texts, int64_t bytes);

}  // namespace trireme
