#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/collective/communicator.h"

// The operators with which the graph of a step combines values over the ranks of a communicator.
// They name the communicator by a number, so that a graph stays plain data.
namespace trireme::internal {

// Makes a communicator known to the operators of this process for as long as the object lives.
// Thread-safe.
class StepCommunicator {
 public:
  explicit StepCommunicator(std::shared_ptr<Communicator> communicator);
  ~StepCommunicator();

  StepCommunicator(const StepCommunicator&) = delete;
  StepCommunicator& operator=(const StepCommunicator&) = delete;

  int64_t number() const { return number_; }

 private:
  const int64_t number_;
};

// Names of the operators, whose schemas are:
//
//   start_sum(Tensor[] values, Tensor? after, int communicator, int wire_dtype, str tag) -> Tensor
//     Copies the values into a bucket, one behind the other, and starts to sum it over the ranks.
//     Returns the bucket, which only finish_sum may use. `after` is the bucket that was started
//     before; the operator does not use it, but all ranks then start their buckets in the same
//     order, whichever threads run the operators. `wire_dtype` is the dtype of the bucket, or -1
//     for that of the values.
//   finish_sum(Tensor(a -> *) bucket, int[] sizes, int dtype, int communicator) -> Tensor(a)[]
//     Waits for the sum and returns it, in tensors of the sizes of the values. They are parts of
//     the bucket if it has their dtype. `sizes` has for each tensor the number of its dimensions,
//     and then these.
//   sum_sparse(Tensor value, Tensor? after, int communicator, str tag) -> Tensor
//     Returns the sum of sparse tensors over the ranks.
//   first_of_ranks(Tensor value, Tensor? after, int communicator, str tag) -> Tensor
//     Returns the value of rank 0.
inline constexpr char kStartSum[] = "trireme::start_sum";
inline constexpr char kFinishSum[] = "trireme::finish_sum";
inline constexpr char kSumSparse[] = "trireme::sum_sparse";
inline constexpr char kFirstOfRanks[] = "trireme::first_of_ranks";

// Registers the operators with LibTorch. Thread-safe.
void register_step_reductions();

// Return the sum of a sparse tensor, and the concatenation of dense ones along dimension 0, over
// all ranks. The tensors of the ranks may differ in their number of entries, or rows.
at::Tensor sum_sparse_over_ranks(Communicator& communicator, const at::Tensor& value,
                                 const std::string& tag);
at::Tensor concatenate_over_ranks(Communicator& communicator, const at::Tensor& value,
                                  const std::string& tag);

}  // namespace trireme::internal
