#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <string>

// Makes LibTorch throw when code reads or writes the memory of a tensor: through data_ptr or an
// accessor, or in an operator. Shape, dtype and gradient stay accessible. A lock belongs to the
// storage, so it holds for all views of the tensor and for all threads.
//
// Locking is not synchronised with accesses: no other thread may use the memory while its lock
// changes.
namespace trireme::internal {

// Locks the memory of a tensor. Each access throws a c10::Error with this message. Does nothing for
// a tensor without storage.
void lock_memory(const at::Tensor& tensor, const std::string& message);
// Removes the lock, if there is one.
void unlock_memory(const at::Tensor& tensor);

// Does the same for a storage.
void lock_memory(c10::StorageImpl& storage, const std::string& message);
void unlock_memory(c10::StorageImpl& storage);

// Returns the address of the memory, whether it is locked or not.
const void* locked_data(const c10::StorageImpl& storage);
// Returns a tensor over the same memory that can be read although the memory is locked. Keeps the
// memory alive. The tensor must be on the CPU and strided.
at::Tensor readable_alias(const at::Tensor& tensor);

}  // namespace trireme::internal
