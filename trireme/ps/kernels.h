#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/tensor/scattered_tensor.h"

// Loops with which a server reads and changes the memory of variables; optimizers are elsewhere.
// Each of them runs on the calling thread alone. A server works on many variables at once, so the
// threads that LibTorch would start for one of them would only take cores from the others. The
// caller has checked the arguments: tensors are contiguous and on the CPU, shapes match, and ids
// are in range.
namespace trireme::internal {

void add_in_place(const at::Tensor& target, const at::Tensor& delta);
// Adds a tensor from the pieces in which it arrived, without assembling it. Only for dtypes for
// which adds_pieces() returns true.
void add_in_place(const at::Tensor& target, const ScatteredTensor& delta);
bool adds_pieces(c10::ScalarType dtype);
// Returns true if tensors and rows of this dtype can be added at all. Some dtypes, such as float8,
// can only be assigned.
bool can_add(c10::ScalarType dtype);
void assign(const at::Tensor& target, const at::Tensor& values);

// Change or copy the rows with these ids. Rows are along axis 0; ids are int64 and may repeat.
void add_rows(const at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows);
void assign_rows(const at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows);
void gather_rows(const at::Tensor& source, const at::Tensor& ids, void* out);

// Returns the size of one row in bytes; 0 if there are no rows.
size_t row_bytes(const at::Tensor& tensor);

}  // namespace trireme::internal
