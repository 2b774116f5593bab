#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "trireme/base/clock.h"
#include "trireme/collective/implementation.h"
#include "trireme/collective/reduction.h"

namespace trireme {

namespace internal {
class Group;  // collective/group.h
struct QueuedCall;
}  // namespace internal

// Options of one collective call.
struct CollectiveOptions {
  std::string tag;  // name of the call, which must be the same on all ranks; errors show it
  // Time limit, measured from the call; nullopt for that of the communicator. Lost and frozen ranks
  // are detected earlier.
  std::optional<Duration> timeout = {};
};

// A collective call under way. Copies refer to the same call.
class CollectiveWork {
 public:
  // Returns true if wait() does not block.
  bool done() const;
  // Blocks until the call is complete. Throws Error if it failed.
  void wait() const;

  // For Communicator.
  explicit CollectiveWork(std::shared_ptr<internal::QueuedCall> call);

 private:
  std::shared_ptr<internal::QueuedCall> call_;
};

// Makes collective calls between the ranks of a group. All ranks make the same calls in the same
// order; a call that differs fails the group with an error that names both ranks and both calls.
// Calls return at once and are carried out one after the other. Tensors must be dense, contiguous
// and on the CPU, and must not be used until the call is complete.
//
// The first failure ends the group: every later call throws its cause. Thread-safe, but the order
// of calls from several threads is up to the caller.
class Communicator {
 public:
  // Prepares an implementation for a group. All ranks must do so, with the same implementation.
  // Blocks until all are there, at most for `timeout`. `call_timeout` is the time limit of calls
  // without one of their own. Throws Error.
  Communicator(std::shared_ptr<internal::Group> group, CommunicationImplementation implementation,
               Duration timeout = std::chrono::minutes(10),
               Duration call_timeout = std::chrono::minutes(10));
  // Ends the calls that are under way with CANCELLED.
  ~Communicator();

  int rank() const;
  int size() const;
  // Returns the implementation that was chosen; kAuto if it is a hierarchy of two.
  CommunicationImplementation implementation() const;

  // Combines the values of all ranks, in place.
  CollectiveWork all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::kSum,
                            const CollectiveOptions& options = {});
  // Combines `size()` equal parts along dimension 0, and stores the part of this rank in `output`.
  CollectiveWork reduce_scatter(const at::Tensor& input, const at::Tensor& output,
                                Reduction reduction = Reduction::kSum,
                                const CollectiveOptions& options = {});
  // Stores the values of all ranks in `output`, one after the other along dimension 0.
  CollectiveWork all_gather(const at::Tensor& input, const at::Tensor& output,
                            const CollectiveOptions& options = {});
  // Copies the values of one rank to all others.
  CollectiveWork broadcast(const at::Tensor& tensor, int root = 0,
                           const CollectiveOptions& options = {});
  // Sends the part with the number r of `input` to rank r, for `size()` equal parts along
  // dimension 0, and stores the parts from all ranks in `output`.
  CollectiveWork all_to_all(const at::Tensor& input, const at::Tensor& output,
                            const CollectiveOptions& options = {});
  // Completes when all ranks have called it.
  CollectiveWork barrier(const CollectiveOptions& options = {});

  // Returns a contiguous tensor. all_reduce() needs no copy of it if the ranks share memory.
  at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype);

  // Ends the group, for all ranks, with this error.
  void fail(const std::string& message);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace trireme
