#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/tensor/scattered_tensor.h"

// What a server does to the memory of variables, apart from optimizers. Each runs on the calling
// thread alone: a server works on many variables at once, and threads that LibTorch would wake for
// one of them take the cores from the others. Tensors are contiguous and on the CPU, shapes and ids
// are right: whoever calls has checked them.
namespace trireme::internal {

void add_in_place(const at::Tensor& target, const at::Tensor& delta);
// For dtypes that adds_pieces() names.
void add_in_place(const at::Tensor& target, const ScatteredTensor& delta);
bool adds_pieces(c10::ScalarType dtype);
void assign(const at::Tensor& target, const at::Tensor& values);

// Rows along axis 0; ids are int64 and may repeat.
void add_rows(const at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows);
void assign_rows(const at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows);
void gather_rows(const at::Tensor& source, const at::Tensor& ids, void* out);

// The bytes of one row; 0 when there are no rows.
size_t row_bytes(const at::Tensor& tensor);

}  // namespace trireme::internal
